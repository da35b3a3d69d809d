// SPDX-License-Identifier: Apache-2.0
// The virtual time of a group's collectives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/clock/collective_timing.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/flows/message_times.h"
#include "comm/lossy/network.h"
#include "sim/schedules/hop_schedule.h"

namespace droptest::comm {

/// Moves a rank's clock on over the collectives of one group. Before each, ranks tell each other where their clocks
/// stand, over the reliable inner communicator; then each works out the whole collective, hop by hop, from pure fates,
/// so that all agree without another word.
/// Ranks: all of the group call the same, around the same collective. Determinism: with given compute times the clocks
/// are a pure function of (seed, program), equal on every backend.
class GroupTimeline {
 public:
  /// All but `group` are borrowed, and outlive this.
  GroupTimeline(Communicator& inner, GroupNumber group, const Network& network, const TimeModel& model,
                VirtualTime& time, MessageTimes& times);

  /// `counts` as for CollectiveTiming::collective().
  void collective(sim::Collective collective, std::span<const std::uint64_t> counts, int root, ElementType type,
                  const Message& message);
  void all_to_all(std::span<const std::uint64_t> send_counts, ElementType type, const Message& message);
  void send(int destination, std::uint64_t count_elems, ElementType type, const Message& message);
  void recv(int source, std::uint64_t count_elems, ElementType type, const Message& message);

  /// The training step that the next collectives belong to; the loss of a link may change with it.
  void begin_step(std::uint64_t step);

 private:
  CollectiveTiming::What what_of(const Message& message, ElementType type) const;
  std::vector<double> exchange_clocks();
  // Moves the clock on over a collective, which `play` works out from all ranks' clocks.
  template <class Play>
  void pass(const Play& play);
  void note_message(const TimedMessage& message);

  Communicator& inner_;
  const Network& network_;
  VirtualTime& time_;
  MessageTimes& times_;
  bool notes_times_;  // whether the loss layer asks for them
  CollectiveTiming timing_;
  std::uint64_t step_ = 0;
};

}  // namespace droptest::comm
