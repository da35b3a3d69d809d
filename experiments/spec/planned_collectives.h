// SPDX-License-Identifier: Apache-2.0
// The collectives of a run in each traffic class.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/lab/fate_simulation.h"
#include "experiments/run_config.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {

/// Collectives that are alike.
struct PlannedCollective {
  comm::FateSimulation call;  ///< without network, seed and time
  std::uint64_t times = 0;    ///< of all groups together
};

/// Whether training changes the token embedding.
bool updates_tied_embedding(const RunConfig& config);

/// The class whose reductions are reduce-scatters: with sharded state, gradients go to their owners alone.
std::optional<sim::TrafficClass> scattered_class(const RunConfig& config);

/// The class that has sums with a cut of tokens, in a run where it has messages between sequence ranks.
std::optional<sim::TrafficClass> exchanged_class(const RunConfig& config);

/// Those of a micro-batch in tp_forward and tp_backward: sums of activations, or with a cut of tokens their gathers and
/// scattered sums; those of one reduction of all gradients in dp_gradient; those of one gather of all parameters in
/// parameter_gather; the messages of a micro-batch in pp_activation, pp_gradient, and with sequence ranks in
/// sequence_forward and sequence_backward, as broadcasts to one rank; the sums of a step in tp_recomputation,
/// and with a cut of tokens in sequence_backward; those of the whole run in embedding_gradient and in outer. Tensors of
/// 16-bit floats count as half as many floats. Reads the members model, parallel, sharding, pipeline, memory, device
/// and training. None of a class that the run does not use.
std::vector<PlannedCollective> planned_collectives(const RunConfig& config, sim::TrafficClass traffic_class);

}  // namespace droptest::experiments
