# SPDX-License-Identifier: Apache-2.0
# droptest_nccl_names(<header> <file>): writes a line DROPTEST_NCCL_FUNCTION(name) for each function of NCCL's header.
function(droptest_nccl_names header file)
  file(STRINGS "${header}" lines REGEX "^(ncclResult_t|const char\\*) +nccl[A-Za-z0-9]+\\(")
  set(text "// Functions of ${header}.\n")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^(ncclResult_t|const char\\*) +(nccl[A-Za-z0-9]+)\\(.*$" "\\2" name "${line}")
    string(APPEND text "DROPTEST_NCCL_FUNCTION(${name})\n")
  endforeach()
  file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
endfunction()
