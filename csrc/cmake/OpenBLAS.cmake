# Links OpenBLAS into `target` as CONVBWD_BLAS says: the system's, else the scipy-openblas32 wheel of the build's Python.
# Only engine/blas.cpp knows of it, by base/blas.h, so that builds with and without it share all other objects. A Python
# wheel takes the other wheel only on demand (ON), because it then needs that one at run time as well.
function(convbwd_use_openblas target)
  if(NOT CONVBWD_BLAS MATCHES "^(OFF|AUTO|ON)$")
    message(FATAL_ERROR "CONVBWD_BLAS must be OFF, AUTO or ON, got '${CONVBWD_BLAS}'")
  endif()
  if(CONVBWD_BLAS STREQUAL "OFF")
    return()
  endif()

  find_package(OpenBLAS CONFIG QUIET)  # or what an earlier run found
  if(NOT OpenBLAS_FOUND AND (CONVBWD_BLAS STREQUAL "ON" OR NOT CONVBWD_BUILD_PYTHON))
    find_package(Python COMPONENTS Interpreter QUIET)
    if(Python_Interpreter_FOUND)
      execute_process(
        COMMAND ${Python_EXECUTABLE} -c "import scipy_openblas32 as openblas; print(openblas.get_lib_dir())"
        OUTPUT_VARIABLE lib_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      find_package(OpenBLAS CONFIG QUIET PATHS "${lib_dir}/cmake/openblas" NO_DEFAULT_PATH)
    endif()
  endif()

  if(OpenBLAS_FOUND)
    set(prefix "")
    if(OpenBLAS_LIBRARIES MATCHES "scipy_openblas")
      set(prefix scipy_)
    endif()
    message(STATUS "OpenBLAS ${OpenBLAS_VERSION}: ${OpenBLAS_LIBRARIES}")
    set_source_files_properties(engine/blas.cpp PROPERTIES
      COMPILE_DEFINITIONS "CONVBWD_HAVE_BLAS;CONVBWD_BLAS_PREFIX=${prefix}"
      INCLUDE_DIRECTORIES "${OpenBLAS_INCLUDE_DIRS}")
    set(libraries ${OpenBLAS_LIBRARIES})
    if(SKBUILD AND prefix)  # the wheel was found where pip builds; users have it beside this one
      cmake_path(GET libraries FILENAME name)
      set(libraries $<BUILD_INTERFACE:${libraries}> $<INSTALL_INTERFACE:$<INSTALL_PREFIX>/scipy_openblas32/lib/${name}>)
    endif()
    if(prefix AND NOT SKBUILD)  # no system path; CMake leaves out those below the source folder
      cmake_path(GET OpenBLAS_LIBRARIES PARENT_PATH rpath)
      set(CONVBWD_BLAS_RPATH ${rpath} PARENT_SCOPE)
    endif()
    target_link_libraries(${target} PRIVATE ${libraries})
  elseif(CONVBWD_BLAS STREQUAL "ON")
    message(FATAL_ERROR "CONVBWD_BLAS=ON, but neither a system OpenBLAS nor the scipy-openblas32 wheel was found")
  endif()
endfunction()
