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

/// Starts a collective as soon as its data are ready, and waits for it when the result is needed. Gradients are
/// averaged over the group. Classes: dp_gradient, parameter_gather. Owner: one rank. Ranks: all of the group make the
/// same calls.
class ParameterTraffic {
 public:
  /// All arguments are borrowed. The rounded arena may be empty; `offloaded` may be null.
  ParameterTraffic(comm::Communicator& group, const ParameterTable& table, const ShardPlan& plan, Ops& ops,
                   const ParameterArena& values, const ParameterArena& rounded, const ParameterArena& gradients,
                   OffloadedState* offloaded);

  enum class MicroBatch : std::uint8_t { kFirst, kLater };
  /// Call it before a backward pass if its gradients are to be reduced: those of this micro-batch if the options reduce
  /// after each micro-batch, else the sum over the step.
  void expect_gradients(MicroBatch micro_batch);
  /// Call it when the gradients of that unit are ready. Starts the reductions of the next buckets, in order, if all
  /// their units are ready.
  void gradients_ready(std::size_t unit);
  /// Call it before the gradients of a unit are written. Waits for the reductions of the block that had the same room.
  void make_room_for_gradients(std::size_t unit);
  /// Operations from now on see the reduced gradients.
  void finish_gradients();

  /// An all-gather of all values; each rank contributes its own part. Sharded values are gathered unit by unit and
  /// released again.
  void gather_values();
  /// start_values() starts the all-gather of a unit, unless it was started since the last release. finish_values()
  /// waits for it, and starts it if necessary.
  void start_values(std::size_t unit);
  void finish_values(std::size_t unit);
  void release_values(std::size_t unit);

  /// The all-gather of a unit in class control, without loss, for copies of the parameters on the host.
  void gather_values_exactly(std::size_t unit);

 private:
  struct UnderWay {
    std::size_t bucket = 0;
    comm::Work work;
  };
  enum class State : std::uint8_t { kAbsent, kStarted, kPresent };

  comm::Tensor as_sent(const comm::Tensor& tensor) const { return {tensor.type, tensor.bytes, traffic_}; }
  /// Whether values are offloaded.
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
  bool adds_ = false;            ///< whether reductions add to the sums of earlier micro-batches
  std::size_t next_bucket_ = 0;  ///< the next bucket to be reduced
  std::vector<bool> ready_;      ///< whether the gradients of each unit are ready
  std::deque<UnderWay> reductions_;
  std::vector<State> units_;                      ///< the state of each unit's sharded values
  std::vector<std::vector<comm::Work>> gathers_;  ///< the all-gathers of each unit
};

}  // namespace droptest::models
