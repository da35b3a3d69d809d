# SPDX-License-Identifier: Apache-2.0
# Installs the library of BUILD into WORK, builds the project SOURCE in LANGUAGES with it, and runs its program, which
# prints EXPECTED.
file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/program)
set(flags)
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
set(compilers "-D;CMAKE_CXX_COMPILER=${CXX};-D;CMAKE_CXX_FLAGS=${flags}")
if(LANGUAGES STREQUAL "C")  # the C compiler beside the C++ compiler
  string(REGEX REPLACE "clang\\+\\+" "clang" compiler "${CXX}")
  string(REGEX REPLACE "g\\+\\+" "gcc" compiler "${compiler}")
  string(REGEX REPLACE "c\\+\\+" "cc" compiler "${compiler}")
  set(compilers "-D;CMAKE_C_COMPILER=${compiler};-D;CMAKE_C_FLAGS=${flags}")
  if(SANITIZE AND compiler MATCHES "clang")  # clang's C driver leaves out the part of the runtime that C++ calls
    list(APPEND compilers "-D" "CMAKE_EXE_LINKER_FLAGS=-fsanitize-link-c++-runtime -lstdc++")
  endif()
endif()
foreach(command IN ITEMS
    "--install;${BUILD};--prefix;${WORK}/prefix;--component;library;--config;${CONFIG}"
    "-S;${SOURCE};-B;${WORK}/program;-D;CMAKE_PREFIX_PATH=${WORK}/prefix;${compilers};-D;CMAKE_BUILD_TYPE=${CONFIG}"
    "--build;${WORK}/program")
  execute_process(COMMAND ${CMAKE_COMMAND} ${command} OUTPUT_VARIABLE output ERROR_VARIABLE output
                  RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${output}")
  endif()
endforeach()
foreach(folder IN ITEMS comm/json comm/lab comm/spec)
  if(EXISTS ${WORK}/prefix/include/droptest/${folder})
    message(FATAL_ERROR "headers of ${folder} are installed, their library is not")
  endif()
endforeach()
execute_process(COMMAND ${WORK}/program/${PROGRAM} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(FIND "${output}" "${EXPECTED}" found)
if(EXPECTED AND found EQUAL -1)
  message(FATAL_ERROR "${PROGRAM} printed\n${output}\nwant ${EXPECTED}")
endif()

# What hides in the shared library stays hidden, and every name has a version.
file(GLOB library ${WORK}/prefix/lib*/libdroptest.so ${WORK}/prefix/lib/*/libdroptest.so)
execute_process(COMMAND nm -D --defined-only ${library} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[^\n]* A DROPTEST_[0-9.]+\n" "" symbols "${symbols}")
string(REGEX REPLACE "[^\n]* T droptest_[a-z_]+@@DROPTEST_[0-9.]+\n" "" symbols "${symbols}")
if(symbols AND NOT SANITIZE)
  message(FATAL_ERROR "libdroptest.so shows\n${symbols}")
endif()
find_program(pkg_config pkg-config)
if(pkg_config)
  file(GLOB packages ${WORK}/prefix/lib*/pkgconfig ${WORK}/prefix/lib/*/pkgconfig)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${packages} ${pkg_config} --cflags --libs droptest
                  OUTPUT_VARIABLE words COMMAND_ERROR_IS_FATAL ANY)
  if(NOT words MATCHES "-ldroptest")
    message(FATAL_ERROR "pkg-config says ${words}")
  endif()
endif()
