# Source of a library that has the functions of another one, by name alone: the linker sees them here, and the loader
# takes them from the other, which the filter names (DT_FILTER). Run with -D NM, LIBRARY, SOURCE.
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " T [A-Za-z0-9_]+" functions "${symbols}")
list(TRANSFORM functions REPLACE "^ T (.*)$" "void \\1() {}\n")
list(JOIN functions "" functions)
file(WRITE ${SOURCE} "extern \"C\" {\n${functions}}\n")
