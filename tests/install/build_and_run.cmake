# SPDX-License-Identifier: Apache-2.0
# Installs the library of BUILD into WORK, and builds and runs the project SOURCE with it.
file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/program)
set(flags)
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
foreach(command IN ITEMS
    "--install;${BUILD};--prefix;${WORK}/prefix;--component;library;--config;${CONFIG}"
    "-S;${SOURCE};-B;${WORK}/program;-D;CMAKE_PREFIX_PATH=${WORK}/prefix;-D;CMAKE_CXX_COMPILER=${CXX};-D;CMAKE_CXX_FLAGS=${flags};-D;CMAKE_BUILD_TYPE=${CONFIG}"
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
execute_process(COMMAND ${WORK}/program/own_attention COMMAND_ERROR_IS_FATAL ANY)
