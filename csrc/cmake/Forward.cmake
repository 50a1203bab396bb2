# Source of a library whose functions jump to those of the same name in another one, which it needs: the addresses are
# looked up when it is loaded. If names of functions begin with that of the library (NAME) it has no others. Run with
# -D NM, LIBRARY, NAME, SOURCE.
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " T [A-Za-z0-9_]+" functions "${symbols}")
set(own ${functions})
list(FILTER own INCLUDE REGEX "^ T ${NAME}")
if(own)
  set(functions ${own})
endif()
list(TRANSFORM functions REPLACE "^ T (.*)$" "FORWARD(\\1)\n")
list(JOIN functions "" functions)
cmake_path(GET LIBRARY FILENAME name)
file(WRITE ${SOURCE} "#include <dlfcn.h>
#if defined(__x86_64__)
#define JUMP(address) \"jmp *\" address \"(%rip)\"
#elif defined(__aarch64__)
#define JUMP(address) \"adrp x16, \" address \"\\nldr x16, [x16, :lo12:\" address \"]\\nbr x16\"
#else
#error \"how does a function jump to an address in memory on this processor?\"
#endif
#define FORWARD(f) \\
  extern \"C\" __attribute__((visibility(\"hidden\"), used)) void* const behind_##f = dlsym(face, #f); \\
  asm(\".pushsection .text\\n.globl \" #f \"\\n.type \" #f \", %function\\n\" #f \": \" JUMP(\"behind_\" #f) \"\\n.size \" #f \", . - \" #f \"\\n.popsection\");
static void* const face = dlopen(\"${name}\", RTLD_NOW);
${functions}")
