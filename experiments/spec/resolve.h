// SPDX-License-Identifier: Apache-2.0
// One run of a spec: every default written out, every shorthand expanded, and its id.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/spec/file_hashes.h"
#include "experiments/spec/idle_network.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

struct ResolvedRun {
  nlohmann::json spec;  ///< the resolved spec: a spec itself, which resolves to itself
  RunConfig config;
  std::string run_id;             ///< 16 hex digits
  std::vector<Warning> warnings;  ///< about the document that was resolved
  /// A sweep's labels for the values of its point: [{"label": .., "pointers": [..]}]; no part of the spec or its id.
  nlohmann::json labels = nlohmann::json::array();
};

/// The treatment of the numerics_version that a document has. kToTrain: it is this program's version for such a spec,
/// or an error. kToRead, for a record that is only read: it may be an earlier one, and stays.
enum class NumericsUse : std::uint8_t { kToTrain, kToRead };

/// Resolves one point: a spec without `sweep` and `repeat`. `where` names it in messages. `files`: gives the hashes of
/// data and initial weights, which are part of the id; null: hashes stay as they are written, and no file is needed.
/// Throws: ConfigError that lists all errors: those of the schema first, then those between several keys.
/// Determinism: a pure function of the document and of the files that it names. With device "auto" the result also
/// depends on the machine's CUDA devices. The id does not depend on the order of keys.
ResolvedRun resolve(const nlohmann::json& document, const std::string& where, FileHashes* files = nullptr,
                    NumericsUse use = NumericsUse::kToTrain);

/// Gives the run other seeds: the result is that of resolve() for the document with those seeds.
void reseed(ResolvedRun& run, const Seeds& seeds);

/// The run as that many replicas train it. If there is one replica, it has all of the state, whatever /parallel/zero
/// is. Throws: ConfigError if the spec has no meaning with that many replicas.
RunConfig with_replicas(const ResolvedRun& run, int replicas);

/// {"weights": .., "data": .., "network": ..}, as specs and records have them.
nlohmann::json seeds_json(const Seeds& seeds);

}  // namespace droptest::experiments
