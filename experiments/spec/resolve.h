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

/// What is done with the numerics_version that a document has: it is that of this program for such a spec, or an error;
/// or, where a record is only read, it may be an earlier one, and stays.
enum class NumericsUse : std::uint8_t { kToTrain, kToRead };

/// Resolves one point: a spec without `sweep` and `repeat`. `where` names it in messages. `files`: gives the hashes of
/// data and initial weights, which are part of the id; without it hashes stay as they are written, and the files need
/// not be there.
/// Throws: ConfigError that lists all errors: those of the schema first, then those between several keys.
/// Determinism: a pure function of the document and of the files that it names, and with device "auto" of whether this
/// machine has a CUDA device; the id does not depend on the order of keys.
ResolvedRun resolve(const nlohmann::json& document, const std::string& where, FileHashes* files = nullptr,
                    NumericsUse use = NumericsUse::kToTrain);

/// Makes it the same run with other seeds: the result of resolve() for the document with those seeds.
void reseed(ResolvedRun& run, const Seeds& seeds);

/// The run as these many replicas train it. A lone replica has all of the state, whatever /parallel/zero is. Throws:
/// ConfigError where the spec has no meaning then.
RunConfig with_replicas(const ResolvedRun& run, int replicas);

/// {"weights": .., "data": .., "network": ..}, as specs and records have them.
nlohmann::json seeds_json(const Seeds& seeds);

}  // namespace droptest::experiments
