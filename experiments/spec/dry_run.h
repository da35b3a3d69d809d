// SPDX-License-Identifier: Apache-2.0
// What a run sends, found by running its training step without data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/dry_communicator.h"
#include "comm/lab/fate_simulation.h"
#include "comm/parallel_layout.h"
#include "experiments/run_config.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {

/// The calls of a rank, and of those whose calls are alike.
struct DryRank {
  comm::ParallelNumbers at;                 ///< the first of them
  comm::ParallelNumbers alike{1, 1, 1, 1};  ///< coordinates in each dimension with such calls
  std::vector<comm::DryCall> start;         ///< the starting weights on their way to ranks that have none
  int micro_batches = 1;                    ///< of `step`: the first few of a large number
  std::vector<comm::DryCall> step;          ///< a training step with its update
  std::vector<comm::DryCall> shorter_step;  ///< of one less than `step`; empty: that has all micro-batches
  std::vector<comm::DryCall> evaluation;    ///< of one batch
};

/// Collectives and messages of one class that are alike: a message, and each part of an all-to-all, is a broadcast to
/// one rank. Elements count as float32: two of 16 bits are one.
struct PlannedCollective {
  comm::FateSimulation call;    ///< without network, seed and time
  std::uint64_t times = 0;      ///< in a training step, of all groups together
  std::uint64_t evaluated = 0;  ///< in an evaluation of one batch on each replica
  std::uint64_t otherwise = 0;  ///< in the whole run besides: of the starting weights, and of outer steps
  std::uint64_t names = 0;      ///< of a step's calls on one rank, at most; a message's peer is part of its name
  std::vector<comm::ParallelDimension> dimensions{};  ///< in which the ranks of a group differ

  bool is_over(comm::ParallelDimension dimension) const {
    return std::ranges::find(dimensions, dimension) != dimensions.end();
  }
};

/// Runs Gpt2 and TrainingStep on a rank of each kind, with operations that compute nothing and a communicator that
/// sends nothing (models/ops/planner_ops.h). What a step outside of them sends is no part of it: outer steps are
/// counted from their fragments, and checkpoints, absences and measurements are left out. Reads the members model,
/// parallel, sharding, pipeline, memory, device, outer and training. Throws: ConfigError of the model for a config that
/// it does not take.
class DryRun {
 public:
  explicit DryRun(const RunConfig& config);

  const std::vector<DryRank>& ranks() const { return ranks_; }
  /// The rank of `ranks()` that stands for the one with these coordinates. Not of a world of one rank.
  const DryRank& of_rank(const comm::ParallelNumbers& at) const;
  /// Those of a class; none of one that the run does not use. In the order of a step.
  const std::vector<PlannedCollective>& of(sim::TrafficClass traffic_class) const {
    return collectives_[static_cast<std::size_t>(traffic_class)];
  }

 private:
  std::vector<int> of_tensor_, of_sequence_;  ///< the first coordinate with calls like those of each one
  std::vector<DryRank> ranks_;
  std::vector<std::vector<PlannedCollective>> collectives_;
};

/// A dry run from when its result is first needed.
class DryRunWhenAsked {
 public:
  /// The config is borrowed.
  explicit DryRunWhenAsked(const RunConfig& config) : config_(config) {}
  const DryRun& get() const;

 private:
  const RunConfig& config_;
  mutable std::optional<DryRun> run_;
};

/// The messages of a call to and from other ranks, in elements: of sends, receives and the parts of an all-to-all.
struct Sent {
  using Numbers = std::vector<std::uint64_t>;
  Numbers to_others, from_others;
};
Sent sent_by(const comm::DryCall& call);

/// Of a rank's calls of a class those of its first block.
std::vector<comm::DryCall> of_first_block(const std::vector<comm::DryCall>& calls, sim::TrafficClass traffic_class);

/// Whether training changes the token embedding.
bool updates_tied_embedding(const RunConfig& config);
/// Whether the embedding and the head, which have one tensor, are on two ranks.
bool shares_tied_embedding(const RunConfig& config);

/// The class whose reductions are reduce-scatters: with sharded state, gradients go to their owners alone.
std::optional<sim::TrafficClass> scattered_class(const RunConfig& config);

/// The class that has sums with a cut of tokens, in a run where it has messages between sequence ranks.
std::optional<sim::TrafficClass> exchanged_class(const RunConfig& config);

}  // namespace droptest::experiments
