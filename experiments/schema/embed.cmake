# SPDX-License-Identifier: Apache-2.0
# Writes the schemas of this folder into one source file, so that the binary checks against the same text.
# Sets DROPTEST_SCHEMA_SOURCE to its path.
set(schemas spec metrics loss_statistics summary sweep search diagnostics)
set(text "// Made by experiments/schema/embed.cmake from the files of that folder.\n#include \"experiments/spec/embedded_schemas.h\"\n\n")
string(APPEND text "namespace droptest::experiments {\n\n")
string(APPEND text "const std::vector<std::pair<std::string_view, std::string_view>>& embedded_schemas() {\n")
string(APPEND text "  static const std::vector<std::pair<std::string_view, std::string_view>> kSchemas = {\n")
foreach(schema IN LISTS schemas)
  set(file "${CMAKE_CURRENT_LIST_DIR}/${schema}.schema.json")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" content)
  # Without indentation: compilers need not take string literals beyond 65,536 characters.
  string(REGEX REPLACE "\n +" "\n" content "${content}")
  string(APPEND text "{\"${schema}.schema.json\", R\"schema(${content})schema\"},\n")
endforeach()
string(APPEND text "  };\n  return kSchemas;\n}\n\n}  // namespace droptest::experiments\n")
set(DROPTEST_SCHEMA_SOURCE "${CMAKE_CURRENT_BINARY_DIR}/embedded_schemas.cc")
file(GENERATE OUTPUT "${DROPTEST_SCHEMA_SOURCE}" CONTENT "${text}")
