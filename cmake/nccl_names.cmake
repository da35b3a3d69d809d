# SPDX-License-Identifier: Apache-2.0
# droptest_nccl_names(<list> <header> <file>): writes a line DROPTEST_NCCL_FUNCTION(name) for each function of the list,
# which has the newest version's (api/nccl/nccl_names.json), and of NCCL's header, which may be newer; a line
# DROPTEST_NCCL_OTHER_FUNCTION(name) for functions that return something else than an ncclResult_t. A jump needs no
# prototype, and a library without the function says so.
function(droptest_nccl_names list header file)
  file(READ "${list}" document)
  foreach(kind IN ITEMS functions others)
    string(JSON count LENGTH "${document}" ${kind})
    math(EXPR last "${count} - 1")
    foreach(i RANGE ${last})
      string(JSON name GET "${document}" ${kind} ${i})
      list(APPEND ${kind} ${name})
    endforeach()
  endforeach()
  file(STRINGS "${header}" lines REGEX "^ncclResult_t +nccl[A-Za-z0-9]+\\(")
  list(TRANSFORM lines REPLACE "^ncclResult_t +(nccl[A-Za-z0-9]+)\\(.*$" "\\1")
  list(APPEND functions ${lines})
  list(REMOVE_DUPLICATES functions)
  set(text "// Functions of ${list} and ${header}.\n")
  foreach(name IN LISTS functions)
    string(APPEND text "DROPTEST_NCCL_FUNCTION(${name})\n")
  endforeach()
  foreach(name IN LISTS others)
    string(APPEND text "DROPTEST_NCCL_OTHER_FUNCTION(${name})\n")
  endforeach()
  file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}" "${list}")
endfunction()
