// SPDX-License-Identifier: Apache-2.0
// The virtual time of a group's collectives.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/arrivals.h"
#include "comm/lossy/flow_ledger.h"
#include "comm/lossy/network.h"
#include "comm/lossy/time_model.h"
#include "sim/schedules/hop_schedule.h"
#include "sim/time/hop_timing.h"
#include "sim/time/straggler.h"

namespace droptest::comm {

/// Moves a rank's clock on over the collectives of one group. Before each, ranks tell each other where their clocks
/// stand, over the reliable inner communicator; then each works out the whole collective, hop by hop, from pure fates,
/// so that all agree without another word.
/// Ranks: all of the group call the same, around the same collective. Determinism: with given compute times the clocks
/// are a pure function of (seed, program), equal on every backend.
class GroupTimeline {
 public:
  /// All but `group` are borrowed, and outlive this. `network` has the loss that a reliable network repeats.
  GroupTimeline(Communicator& inner, GroupNumber group, const Network& network, const TimeModel& model,
                VirtualTime& time, Arrivals& arrivals);

  void all_reduce(std::uint64_t count_elems, ElementType type, const Message& message);
  void reduce_scatter(std::span<const std::uint64_t> counts, ElementType type, const Message& message);
  void all_gather(std::span<const std::uint64_t> counts, ElementType type, const Message& message);
  void all_to_all(std::span<const std::uint64_t> send_counts, ElementType type, const Message& message);
  void broadcast(int root, std::uint64_t count_elems, ElementType type, const Message& message);
  void send(int destination, std::uint64_t count_elems, ElementType type, const Message& message);
  void recv(int source, std::uint64_t count_elems, ElementType type, const Message& message);

  /// The training step that the next collectives belong to; the loss of a link may change with it.
  void begin_step(std::uint64_t step) { step_ = step; }

 private:
  // What a message of a class takes on its way.
  struct Wire {
    const ClassNetwork& network;
    sim::TrafficClass traffic_class;
    std::size_t element_bytes;
  };
  struct Costed {
    sim::HopCost cost;
    std::uint64_t repeated = 0;
    std::uint64_t timeouts = 0;
  };

  // Where the draws of a hop come from: its link's slots, and the number of what it belongs to.
  struct Draws {
    std::map<sim::Link, std::uint64_t>& next_slot;
    std::uint64_t first_slot;
    std::size_t round;
    std::uint64_t index;
  };

  Wire wire_of(ElementType type, const Message& message) const;
  std::vector<double> exchange_clocks();
  sim::Link link(const Wire& wire, sim::Half half, int source, int destination) const;
  Costed cost_of(const Wire& wire, const sim::TimedHop& hop, const Draws& draws) const;
  Costed cost_in_collective(const Wire& wire, const sim::TimedHop& hop, std::size_t round);
  Costed cost_of_message(const Wire& wire, const sim::TimedHop& hop);
  void play(const Wire& wire, const sim::TimedRounds& schedule);
  bool play_hops(const Wire& wire, sim::Collective collective, std::span<const std::uint64_t> counts, int root = 0);
  void aggregate(const Wire& wire, std::uint64_t count_elems);
  void count(const Costed& costed, std::uint64_t in_time);
  void note_arrivals(const Wire& wire, const sim::TimedRounds& schedule, std::span<const std::uint64_t> in_time);

  Communicator& inner_;
  GroupNumber group_;
  const Network& network_;
  const TimeModel& model_;
  VirtualTime& time_;
  Arrivals& arrivals_;
  sim::Straggler straggler_;
  std::uint64_t step_ = 0;
  std::uint64_t collectives_ = 0;
  // Where loss decides on repetitions. All ranks of the group see all its collectives; of what goes from send to recv
  // only the two ends know, so it has slots of its own.
  std::map<sim::Link, std::uint64_t> next_slot_;
  std::map<sim::Link, std::uint64_t> next_message_slot_;
  std::map<sim::Link, std::uint64_t> messages_;
};

}  // namespace droptest::comm
