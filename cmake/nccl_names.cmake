# SPDX-License-Identifier: Apache-2.0
# droptest_nccl_names(<header> <file>): writes a line DROPTEST_NCCL_FUNCTION(name) for each function of NCCL's header, and
# for those of other versions and headers: a jump needs no prototype, and a library without the function says so.
set(droptest_other_nccl_names
  ncclCommMemStats ncclCommResume ncclCommSuspend ncclDevCommCreate ncclDevCommDestroy ncclGetLsaMultimemDevicePointer
  ncclGetPeerDevicePointer ncclPutSignal ncclResetDebugInit ncclSignal ncclWaitSignal)

function(droptest_nccl_names header file)
  file(STRINGS "${header}" lines REGEX "^(ncclResult_t|const char\\*) +nccl[A-Za-z0-9]+\\(")
  set(text "// Functions of ${header}.\n")
  list(TRANSFORM lines REPLACE "^(ncclResult_t|const char\\*) +(nccl[A-Za-z0-9]+)\\(.*$" "\\2")
  list(APPEND lines ${droptest_other_nccl_names})
  list(REMOVE_DUPLICATES lines)
  foreach(name IN LISTS lines)
    string(APPEND text "DROPTEST_NCCL_FUNCTION(${name})\n")
  endforeach()
  file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
endfunction()
