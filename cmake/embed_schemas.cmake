# SPDX-License-Identifier: Apache-2.0
# droptest_embed_schemas(<target> <header> <namespace> <file>...): a source file of the target that defines the
# embedded_schemas() of the header with the texts of the files, so that the binary checks against the same text.
function(droptest_embed_schemas target header namespace)
  set(text "// Made by cmake/embed_schemas.cmake.\n#include \"${header}\"\n\nnamespace ${namespace} {\n\n")
  string(APPEND text "const std::vector<std::pair<std::string_view, std::string_view>>& embedded_schemas() {\n")
  string(APPEND text "  static const std::vector<std::pair<std::string_view, std::string_view>> kSchemas = {\n")
  foreach(schema IN LISTS ARGN)
    set(file "${CMAKE_CURRENT_SOURCE_DIR}/${schema}")
    cmake_path(GET file FILENAME name)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(READ "${file}" content)
    # Without indentation: compilers need not take string literals beyond 65,536 characters.
    string(REGEX REPLACE "\n +" "\n" content "${content}")
    string(APPEND text "{\"${name}\", R\"schema(${content})schema\"},\n")
  endforeach()
  string(APPEND text "  };\n  return kSchemas;\n}\n\n}  // namespace ${namespace}\n")
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${target}_schemas.cc")
  file(GENERATE OUTPUT "${source}" CONTENT "${text}")
  target_sources(${target} PRIVATE "${source}")
endfunction()
