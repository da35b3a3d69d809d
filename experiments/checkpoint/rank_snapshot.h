// SPDX-License-Identifier: Apache-2.0
// One rank's state of training, copied out of the memory that training goes on with.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/files/manifest.h"
#include "models/files/safetensors.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/ops/ops.h"
#include "models/state_visitor.h"
#include "sim/state_visitor.h"

namespace droptest::experiments {

/// The parts of one rank's training that checkpoints have. Everything is borrowed.
struct TrainingState {
  models::Ops& ops;                                        ///< operations of the model
  const std::vector<models::Gpt2Tensor>& tensors;          ///< tensors of the model on this rank
  std::function<void(models::StateVisitor&)> visit_model;  ///< parameters and optimizer
  std::function<void(sim::StateVisitor&)> visit_network;   ///< the loss layer
  std::function<void(sim::StateVisitor&)> visit_progress;  ///< counts and losses so far
  /// The losses of each membership so far, as manifests have them. Ranks: all.
  std::function<nlohmann::json()> memberships = [] { return nlohmann::json::array(); };
};

/// A rank's state between two steps. `file` lacks size and checksum, which writing the tensors gives.
struct RankSnapshot {
  models::StoredTensors tensors;
  RankFile file;
};

/// Names in a rank's file of the state that is no tensor of the model.
inline constexpr const char* kNetworkKey = "state/network";
inline constexpr const char* kProgressKey = "state/progress";

/// The name of a rank's file.
std::string rank_file_name(int rank);

/// A copy of the state. `replica_of`: the rank that stores the tensors shared by all replicas; absent: this one does.
/// Waits for the device.
RankSnapshot take_snapshot(const TrainingState& state, int rank, std::optional<int> replica_of);

/// The element type as safetensors calls it.
std::string stored_type(comm::ElementType type);

}  // namespace droptest::experiments
