// SPDX-License-Identifier: Apache-2.0
// The time at which each rank of a group finishes a collective, computed only from fates.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/flows/send_times.h"
#include "comm/lossy/network.h"
#include "comm/lossy/paths/path_messages.h"
#include "sim/recovery/link_recovery.h"
#include "sim/state_visitor.h"
#include "sim/time/hop_timing.h"
#include "sim/time/straggler.h"

namespace droptest::comm {

/// One message of a collective, or one from send to recv, with its times.
struct Transmission {
  sim::Link link;      ///< the link that gives its fates
  int counted_on = 0;  ///< the rank of the group that counts it
  sim::HopCost cost;
  std::uint64_t data_packets = 0;  ///< data packets among cost.packets
  double factor = 1;               ///< straggler factor on its latency, transfer and waiting times
  double departs_seconds = 0;
  double packet_seconds = 0;              ///< time of one full packet on its link
  bool is_stopped = false;                ///< whether the clock stands still
  std::uint64_t resent = 0;               ///< repetitions of packets, each as often as it was sent again
  std::uint64_t timeouts = 0;             ///< waits for feedback or timers
  std::optional<ResentMessage> repeated;  ///< its position and timing, if its link sends again
  std::optional<std::uint64_t> in_time;   ///< number of packets in time for a deadline or a quorum; absent: all
};

/// The times of one group's collectives, one after the other. Each collective moves the clocks of all ranks, and visits
/// its messages in the order in which ports carry them.
/// Ranks: each rank of a group has one object, or a simulation has one for all ranks. Determinism: a pure function of
/// (network, model, calls).
class CollectiveTiming {
 public:
  using Visit = std::function<void(const Transmission&)>;
  /// A collective has fewer rounds than this. Round numbers from this one on belong to messages from send to recv, one
  /// number for each class.
  static constexpr int kMostRounds = 0xff00;

  /// `network` and `model` are borrowed.
  CollectiveTiming(const Network& network, const TimeModel& model, GroupNumber group, std::vector<int> world_ranks);

  /// Visits the whole state except the positions of links.
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, collectives_, messages_); }

  /// The properties of a call that all its messages share.
  struct What {
    sim::TrafficClass traffic_class = sim::TrafficClass::kTpForward;
    ElementType type = ElementType::kFloat32;
    Delivery delivery = Delivery::kByNetwork;  ///< kCertain: each message is sent once
    std::optional<std::uint64_t> ordinal{};    ///< Message::ordinal
    bool is_stopped = false;                   ///< whether the clock stands still: departures use separate times
    std::uint64_t step = 0;                    ///< the loss of a link may change with it
  };
  /// Whether links of that half may send packets again. The times of messages then depend on the positions of these
  /// links.
  bool repeats(const What& what, sim::Half half) const;
  /// The link between two ranks of the group.
  sim::Link link(const What& what, sim::Half half, int source, int destination) const;
  /// Sets the position of a link before the next call, if the link has carried messages that this object does not know:
  /// those of another group, from send to recv, or of steps without this rank.
  void set_position(const sim::Link& link, const LinkPosition& position);

  /// `clocks[r]` is the time in seconds at which rank r begins, and afterwards the time at which it ends. An all-to-all
  /// has the table of all ranks as its counts.
  void collective(const CallShape& call, const What& what, std::span<double> clocks, const Visit& visit);
  /// A message from send to recv that departs at the sender's time `clock`, in seconds; only the two ends know it.
  Transmission message(const What& what, int source, int destination, std::uint64_t elements, double clock);

 private:
  // The numbers that select a message's straggler.
  struct Draws {
    std::size_t round;
    std::uint64_t index;
  };
  // The position of a link that sends again, and the repetitions of the collective's last message. Hops with packets
  // for every destination share one ResendingLink.
  struct ResendingLink : LinkPosition {
    std::optional<std::uint64_t> collective;  // number of the collective of its last message
    ResentMessage last;
    sim::Repair repair;
  };
  using ResendingLinks = std::map<sim::Link, ResendingLink>;

  int ranks() const { return static_cast<int>(world_ranks_.size()); }
  const ClassNetwork& network_of(const What& what) const;
  const HalfNetwork& half_of(const What& what, sim::Half half) const;
  Transmission cost_of(const What& what, const sim::TimedHop& hop, const Draws& draws) const;
  Transmission cost_in_collective(const What& what, const sim::TimedHop& hop, std::size_t round) const;
  // The link that sets the time of a message from a rank to all others at once.
  const sim::LinkCost& slowest_link() const;
  // Adds the time of the repetitions to a message with a departure, if its link sends again.
  void repeat(Carrier of, const What& what, Transmission& message);
  // Visits the messages of one collective.
  using VisitMessages = std::function<void(const PathMessages::Visit&)>;
  void play_rounds(const VisitMessages& visit_messages, const What& what, std::span<double> clocks, const Visit& visit);
  void aggregate(const VisitMessages& visit_messages, const What& what, std::span<double> clocks, const Visit& visit);
  // Finds the packets of each contribution that are in time, visits the contribution, and returns the time in seconds
  // at which the aggregation point stops waiting.
  double aggregation_ends(std::span<Transmission> contributions, double first_seconds, const What& what,
                          const Visit& visit) const;

  const Network& network_;
  const TimeModel& model_;
  GroupNumber group_;
  std::vector<int> world_ranks_;
  sim::Straggler straggler_;
  std::uint64_t collectives_ = 0;
  ResendingLinks resending_links_;
  std::map<sim::Link, std::uint64_t> messages_;
};

/// Gives the times of a collective's message to the loss layer, on the link that gives its fates.
void note_time(const Transmission& message, SendTimes& times);

/// Adds a message to the counts of the rank that counts it.
void count_message(const Transmission& message, VirtualTime& time);

}  // namespace droptest::comm
