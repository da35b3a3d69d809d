// SPDX-License-Identifier: Apache-2.0
// Whether the files of a run still have the contents that its resolved spec records.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/spec/file_hashes.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

/// The files with hashes in a resolved spec, except for shards: data, initial weights, the checkpoint that it starts
/// from, and kernels in shared objects.
std::vector<std::string> recorded_files(const nlohmann::json& resolved_spec);

/// Whether shards are compared, too. A run that trains compares its own shards: it sets changed ones aside, as far as
/// /data/lost_limit allows.
enum class ShardFiles : std::uint8_t { kCompared, kLeftToTraining };

/// Compares the files with the hashes in the run's spec; files that `files` knows are not read. A spec without hashes
/// asks for nothing. Initial weights and the checkpoint of /start may be missing, since a run with a checkpoint of its
/// own does without them; so may shards if /data/lost_limit is not 0.
/// Throws: ConfigError with a line "<where>: /data/sha256: got .., but FILE has .." for each file with another content.
void require_recorded_files(const ResolvedRun& run, const std::string& where, FileHashes& files, ShardFiles shards);

}  // namespace droptest::experiments
