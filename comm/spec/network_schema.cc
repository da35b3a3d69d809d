// SPDX-License-Identifier: Apache-2.0
#include "comm/spec/network_schema.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/spec/embedded_schemas.h"

namespace droptest::comm {

nlohmann::json network_schema_document() {
  const auto& [file, text] = embedded_schemas().front();
  return parse_json(text, std::string(file));
}

const Schema& network_schema() {
  static const Schema kSchema = [] {
    const std::string file(embedded_schemas().front().first);
    std::vector<std::pair<std::string, nlohmann::json>> files;
    files.emplace_back(file, network_schema_document());
    return Schema(std::make_shared<const SchemaFiles>(std::move(files)), file);
  }();
  return kSchema;
}

nlohmann::json checked_sections(const nlohmann::json& given, const std::string& where) {
  const nlohmann::json document = network_schema().with_one_word(given);
  require_valid(network_schema(), document, where);
  return network_schema().with_defaults(document);
}

}  // namespace droptest::comm
