// SPDX-License-Identifier: Apache-2.0
// The checkpoint with which a run begins.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "experiments/files/manifest.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The identity of the run in its manifests, and its folder.
struct CheckpointPlace {
  std::string folder;  ///< <run>/checkpoints
  std::string name;
  std::string run_id;
  std::string spec_sha256;
  nlohmann::json provenance = nlohmann::json::object();
  /// Whether the run continues from the newest intact checkpoint, or starts from the beginning.
  enum class Resume : std::uint8_t { kNewest, kNever } resume = Resume::kNewest;
};

/// The number of the membership in which a run begins. It is that of the newest intact checkpoint, or the next number
/// if the run has another number of replicas. Ranks: all.
int membership_at_start(const std::optional<CheckpointPlace>& place, const RunConfig& config,
                        comm::Communicator& group);
/// The manifest of the run's newest intact checkpoint, also of states that ranks have left; absent: it has none. Ranks:
/// only rank 0.
std::optional<Manifest> newest_checkpoint(const std::optional<CheckpointPlace>& place, const RunConfig& config);
/// The step after which a run begins: the step of its newest intact checkpoint, or of the other run's checkpoint in
/// `start` if the run has no checkpoint, or 0 if it has neither. Ranks: only rank 0.
std::uint64_t step_at_start(const std::optional<CheckpointPlace>& place, const RunConfig& config);

}  // namespace droptest::experiments
