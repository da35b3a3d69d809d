// SPDX-License-Identifier: Apache-2.0
// The counts of a program's ranks as loss_statistics.json (docs/records.md): each rank writes a file, and merges the
// files that are there.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/rank_network.h"

namespace droptest::api {

/// The counts of only this rank. `network.mutex` is held.
nlohmann::json statistics_of_rank(droptest_network& network);

/// Writes <folder>/ranks/<rank>.json and <folder>/loss_statistics.json of all ranks that have written theirs; ranks
/// write one after the other. `network.mutex` is held. Throws: ConfigError with the path and the system's reason.
void write_statistics(droptest_network& network, const std::string& folder);

/// Removes this rank's file of an earlier program in that folder, so that the counts of a rank that is killed later are
/// missing instead of old. Throws: ConfigError with the path and the system's reason.
void forget_statistics(const std::string& folder, int rank);

}  // namespace droptest::api
