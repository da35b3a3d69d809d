// SPDX-License-Identifier: Apache-2.0
// The rules of virtual time, and the time that a rank has used.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "comm/lossy/network.h"
#include "sim/state_visitor.h"
#include "sim/time/link_cost.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// The rules of the virtual clock (docs/time.md).
struct TimeModel {
  sim::LinkClasses links;
  std::uint64_t header_bytes = 0;  ///< header bytes on the wire before each packet's payload
  /// Deadline of each round of hops, and of the wait of an aggregation point: packets that arrive later are lost.
  /// Messages from send to recv have no deadline. A deadline has no meaning together with a recovery of links.
  std::optional<double> deadline_seconds;
  /// Compute time of a rank in a step; absent: the processor time that it takes.
  std::optional<double> compute_seconds;
  double later_share = 0;  ///< share of compute_seconds that passes in pieces during a step instead of at its start
  /// Seconds of processor time of the calling thread, from which compute time is measured; empty: the system's clock.
  std::function<double()> thread_seconds;
  double compute_p99_over_p50 = 1;   ///< tail of the lognormal factor on each rank's compute time in a step
  double transfer_p99_over_p50 = 1;  ///< tail of the lognormal factor on each hop's time
};

/// Throws: ConfigError for values out of range, for a quorum that has no meaning, and for a deadline with measured
/// compute time or with a recovery of links. Measured times would make fates differ from run to run, and a recovery
/// does not know the late packets.
void validate(const TimeModel& model, const Network& network);

/// The reason why the quorum of a class has no meaning with these rules of time (null: there is no clock); absent: it
/// has a meaning, or the class has no quorum. All ranks find the same late messages only with given compute times,
/// without repetitions and deadlines.
std::optional<std::string> quorum_refusal(const ClassNetwork& network, const TimeModel* model);

/// The clock of one rank, and the parts of its time. It counts the messages that the rank receives. A contribution to
/// an aggregation point is counted on the rank that sends it. Of the results that come back, only repetitions and
/// timeouts are counted.
struct VirtualTime {
  double seconds = 0;
  double compute_seconds = 0;  ///< computation: the time between waits for calls
  double idle_seconds = 0;     ///< waits until all ranks of a call were ready: stragglers, bubbles of a pipeline
  std::array<double, sim::kAllTrafficClasses.size()> exposed{};  ///< the rest of the waits, by class of the call
  /// Sum over the rank's collectives of the time from the readiness of their data and ports to their ends, and over its
  /// messages of the time at the rank's port and of the waits for repetitions. It does not matter whether the rank
  /// waited or computed meanwhile.
  double network_seconds = 0;
  std::uint64_t packets = 0;   ///< packets of these messages
  std::uint64_t repeated = 0;  ///< transmissions beyond the first one of each packet
  std::uint64_t timeouts = 0;  ///< waits for feedback or timers
  std::uint64_t late = 0;      ///< packets that missed a deadline or a quorum

  double& exposed_in(sim::TrafficClass of) { return exposed[static_cast<std::size_t>(of)]; }
  double exposed_in(sim::TrafficClass of) const { return exposed[static_cast<std::size_t>(of)]; }
  void visit_state(sim::StateVisitor& visitor) {
    visit_values(visitor, seconds, compute_seconds, idle_seconds, exposed, network_seconds, packets, repeated, timeouts,
                 late);
  }
};

}  // namespace droptest::comm
