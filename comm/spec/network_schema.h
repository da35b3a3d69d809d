// SPDX-License-Identifier: Apache-2.0
// The rules of a network in JSON: network.schema.json, which is part of the binary and of the schema of specs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "comm/json/schema.h"

namespace droptest::comm {

/// The rules of documents {"network": .., "time": .., "seed": ..}: the sections are as in a spec, so that a broken rule
/// has the same pointer and message as in a spec.
const Schema& network_schema();

/// The rules of network_schema() as a document of their own.
nlohmann::json network_schema_document();

/// A document {"network": .., "time": .., "seed": ..} with defaults. Throws: ConfigError that lists the broken rules;
/// `where` names the document.
nlohmann::json checked_sections(const nlohmann::json& document, const std::string& where);

}  // namespace droptest::comm
