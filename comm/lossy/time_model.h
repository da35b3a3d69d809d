// SPDX-License-Identifier: Apache-2.0
// What time costs in an experiment, and what it came to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/lossy/network.h"
#include "sim/time/link_cost.h"
#include "sim/time/retransmission.h"

namespace droptest::comm {

/// The virtual clock's rules; docs/time.md.
struct TimeModel {
  sim::LinkClasses links;
  std::uint64_t header_bytes = 0;  ///< on the wire, beside each packet's payload
  /// Shared by the ranks. Every packet arrives in the end, at the price of its repetitions. Null: a tolerant network,
  /// where what is lost stays lost and costs nothing.
  std::shared_ptr<const sim::RetransmissionProtocol> reliable;
  std::optional<double> deadline_seconds;  ///< of a round of hops, on a tolerant network; what comes later is lost
  std::optional<double> compute_seconds;   ///< of a rank in a step; absent: the processor time that it takes
  double compute_p99_over_p50 = 1;         ///< of the lognormal factor on each rank's compute time in a step
  double transfer_p99_over_p50 = 1;        ///< of that on each hop's time
};

/// Throws: ConfigError for values out of range, a deadline on a reliable network.
void validate(const TimeModel& model);

/// An all-reduce, as far as its messages are concerned.
struct AllReduceSize {
  int ranks = 1;
  std::uint64_t elements = 0;
  std::uint64_t element_bytes = 4;
};

/// Why the messages of such an all-reduce would hardly ever get across on a reliable network: "takes ... tries on
/// average ..., want at most ...". Absent: they do, as those of smaller ones do then.
std::optional<std::string> endless_repetition(const TimeModel& model, const ClassNetwork& network,
                                              const AllReduceSize& size);

/// Where one rank's clock stands, and how it came there. Counts are of the messages that the rank receives.
struct VirtualTime {
  double seconds = 0;
  double compute_seconds = 0;  ///< of them, spent between collectives; the rest was spent in them
  std::uint64_t packets = 0;   ///< that had to arrive
  std::uint64_t repeated = 0;  ///< transmissions beyond the first of each
  std::uint64_t timeouts = 0;  ///< waits for feedback or timers
  std::uint64_t late = 0;      ///< packets that missed a deadline
};

}  // namespace droptest::comm
