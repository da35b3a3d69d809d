// SPDX-License-Identifier: Apache-2.0
// The JSON of another program's network -> its network, rules and folder.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "comm/lossy/network.h"

namespace droptest::comm {

struct ProgramNetwork {
  Network network;  ///< the network of every class that a rule can name, also of those without loss
  /// Classes by name, as a resolved spec has them. Copies of this struct share them, since the header only declares the
  /// JSON type.
  std::shared_ptr<const nlohmann::json> classes;
  std::shared_ptr<const nlohmann::json> rules;  ///< list of objects, valid by program.schema.json
  std::string statistics;                       ///< folder; empty: none
  std::string identity;                         ///< the text of droptest_network_identity()
};

/// `text` is {"network": SECTION, "seed": INTEGER, "rules": [..], "statistics": FOLDER} (docs/c_interface.md). The
/// default path is `contribution`. Throws: ConfigError that lists all errors, a line each, as
/// lossy_options_from_json(); members that need a communicator of droptest's own are errors, too.
ProgramNetwork program_network_from_json(std::string_view text, const std::string& where, int world_size);

/// The digest of ProgramNetwork::identity that records have: the first 16 hex digits of its SHA-256.
std::string network_digest_text(const std::string& identity);

/// The rules of such documents except for network and seed, which have those of network_schema_document().
nlohmann::json program_schema_document();

}  // namespace droptest::comm
