# SPDX-License-Identifier: Apache-2.0
# Run at each build: writes HEADER with the commit of SOURCE_DIR, touching it only when that has changed, so that one
# file is compiled again and no more.
set(commit unknown)
find_program(git git)
if(git)
  execute_process(COMMAND ${git} rev-parse HEAD WORKING_DIRECTORY ${SOURCE_DIR}
                  OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${head})
    execute_process(COMMAND ${git} status --porcelain --untracked-files=no WORKING_DIRECTORY ${SOURCE_DIR}
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(changes)
      string(APPEND commit "-dirty")
    endif()
  endif()
endif()
string(CONCAT text
  "// Made by experiments/records/commit.cmake.\n#pragma once\n\nnamespace droptest::experiments {\n"
  "inline constexpr const char* kCommit = \"${commit}\";\n}  // namespace droptest::experiments\n")
set(old "")
if(EXISTS ${HEADER})
  file(READ ${HEADER} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE "${HEADER}" "${text}")
endif()
