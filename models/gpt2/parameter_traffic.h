// SPDX-License-Identifier: Apache-2.0
// The collectives of data-parallel ranks: buckets of gradients, and buckets of parameters.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "comm/communicator.h"
#include "models/gpt2/offloaded_state.h"
#include "models/gpt2/parameter_arena.h"
#include "models/gpt2/parameter_table.h"
#include "models/gpt2/shard_plan.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// Starts a collective as soon as its data are ready, and waits for it where the result is needed. Gradients are
/// averaged over the group. Classes: dp_gradient, parameter_gather. Owner: one rank. Ranks: all of the group make the
/// same calls.
class ParameterTraffic {
 public:
  /// All are borrowed. The rounded arena may be empty, `offloaded` null.
  ParameterTraffic(comm::Communicator& group, const ParameterTable& table, const ShardPlan& plan, Ops& ops,
                   const ParameterArena& values, const ParameterArena& rounded, const ParameterArena& gradients,
                   OffloadedState* offloaded);

  enum class MicroBatch : std::uint8_t { kFirst, kLater };
  /// Before a backward pass that makes gradients ready to be reduced: the gradients of this micro-batch alone where
  /// each micro-batch is reduced, else the sum over the step.
  void expect_gradients(MicroBatch micro_batch);
  /// The gradients of that unit are ready: starts the next buckets, in order, as far as units are ready.
  void gradients_ready(std::size_t unit);
  /// Before the gradients of a unit are written: waits for the reductions of the block that had the unit's room.
  void make_room_for_gradients(std::size_t unit);
  /// Operations from now on see the reduced gradients.
  void finish_gradients();

  /// An all-gather of all values; each rank contributes its own part. Sharded values are gathered unit by unit, and
  /// released again.
  void gather_values();
  /// Starts the all-gather of a unit, unless it was started since the last release. finish_values() starts it, too.
  void start_values(std::size_t unit);
  void finish_values(std::size_t unit);
  void release_values(std::size_t unit);

  /// The all-gather of a unit in class control, without loss: for host copies of the parameters.
  void gather_values_exactly(std::size_t unit);

 private:
  struct UnderWay {
    std::size_t bucket = 0;
    comm::Work work;
  };
  enum class State : std::uint8_t { kAbsent, kStarted, kPresent };

  comm::Tensor as_sent(const comm::Tensor& tensor) const { return {tensor.type, tensor.bytes, traffic_}; }
  /// Whether values are outside of memory.
  bool brings_values() const { return offloaded_ != nullptr && offloaded_->has_values(); }
  comm::Tensor own_values(std::size_t bucket) const;
  void start_reduction(std::size_t bucket);
  void finish_oldest_reduction();
  comm::Work start_gather(std::size_t bucket, const comm::Tensor& own, const comm::Tensor& whole);
  comm::Work start_gather(std::size_t bucket);
  void gather_offloaded_values();

  comm::Communicator& group_;
  const ParameterTable& table_;
  const ShardPlan& plan_;
  Ops& ops_;
  const ParameterArena& values_;
  const ParameterArena& rounded_;
  const ParameterArena& gradients_;
  OffloadedState* offloaded_;
  comm::Stream* traffic_ = nullptr;

  bool expects_ = false;
  bool adds_ = false;            ///< to the sums of earlier micro-batches
  std::size_t next_bucket_ = 0;  ///< to be reduced
  std::vector<bool> ready_;      ///< units
  std::deque<UnderWay> reductions_;
  std::vector<State> units_;                      ///< of sharded values
  std::vector<std::vector<comm::Work>> gathers_;  ///< of each unit
};

}  // namespace droptest::models
