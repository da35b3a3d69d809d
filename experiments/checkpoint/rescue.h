// SPDX-License-Identifier: Apache-2.0
// The state that ranks leave behind when another rank dies, and the checkpoint that is made of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/checkpoint/rank_snapshot.h"
#include "experiments/files/manifest.h"

namespace droptest::experiments {

/// Writes one rank's state into the folder's rescue/. `manifest` has all but the ranks. The state is that after the
/// manifest's step, and needs no other rank's. Throws: ConfigError.
void leave_rescue(const CheckpointFolder& folder, Manifest manifest, RankSnapshot snapshot);

/// Makes a checkpoint out of the replicas with all of their ranks' states of one step, and removes rescue/. The latest
/// such step counts; nothing is made if a complete checkpoint is of that step or a later one. Returns the step. Damaged
/// files and those of other runs count as missing; if no replica is missing, the last checkpoint stands.
/// Throws: ConfigError for a checkpoint that cannot be written.
std::optional<std::uint64_t> complete_rescue(const CheckpointFolder& folder, const std::string& run_id, int keep);

}  // namespace droptest::experiments
