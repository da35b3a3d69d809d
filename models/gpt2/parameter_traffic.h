// SPDX-License-Identifier: Apache-2.0
// What data-parallel ranks send each other: buckets of gradients, and of parameters.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "comm/communicator.h"
#include "models/gpt2/parameter_arena.h"
#include "models/gpt2/parameter_table.h"
#include "models/gpt2/shard_plan.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// Starts collectives as soon as they can go, and waits for them where their results are needed. Gradients are means
/// over the group. Classes: dp_gradient, parameter_gather. Owner: one rank. Ranks: all of the group make the same
/// calls.
class ParameterTraffic {
 public:
  /// All are borrowed. The rounded arena may be empty.
  ParameterTraffic(comm::Communicator& group, const ParameterTable& table, const ShardPlan& plan, Ops& ops,
                   const ParameterArena& values, const ParameterArena& rounded, const ParameterArena& gradients);

  enum class MicroBatch : std::uint8_t { kFirst, kLater };
  /// The next backward pass makes gradients ready: of this micro-batch alone where each is reduced, else of all.
  void expect_gradients(MicroBatch micro_batch);
  /// The gradients of that unit are ready: starts the buckets that end there.
  void gradients_ready(std::size_t unit);
  /// Before the gradients of a unit are written: what was in its room is on its way no more.
  void make_room_for_gradients(std::size_t unit);
  /// Operations from now on see the reduced gradients.
  void finish_gradients();

  /// Every rank gets all values of all units, of which each has its own part. Where values are sharded, the units are
  /// gathered one after another, and none stays.
  void gather_values();
  /// The same of a unit; started once, whoever asks first.
  void start_values(std::size_t unit);
  void finish_values(std::size_t unit);
  void release_values(std::size_t unit);

  /// The values of a unit, reliably: not for training.
  void gather_values_exactly(std::size_t unit);

 private:
  struct UnderWay {
    std::size_t bucket = 0;
    comm::Work work;
  };
  enum class State : std::uint8_t { kAbsent, kStarted, kPresent };

  comm::Tensor as_sent(const comm::Tensor& tensor) const { return {tensor.type, tensor.bytes, traffic_}; }
  comm::Tensor own_values(std::size_t bucket) const;
  void start_reduction(std::size_t bucket);
  void finish_oldest_reduction();
  comm::Work start_gather(std::size_t bucket);

  comm::Communicator& group_;
  const ParameterTable& table_;
  const ShardPlan& plan_;
  Ops& ops_;
  const ParameterArena& values_;
  const ParameterArena& rounded_;
  const ParameterArena& gradients_;
  comm::Stream* traffic_ = nullptr;

  bool expects_ = false;
  bool adds_ = false;            ///< to what earlier micro-batches left
  std::size_t next_bucket_ = 0;  ///< to be reduced
  std::deque<UnderWay> reductions_;
  std::vector<State> units_;                      ///< of sharded values
  std::vector<std::vector<comm::Work>> gathers_;  ///< of each unit
};

}  // namespace droptest::models
