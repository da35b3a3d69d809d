// SPDX-License-Identifier: Apache-2.0
// How a reliable network gets a message across links that lose packets, and what that costs in time. Smallest
// example: selective_repeat.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/parameters.h"
#include "sim/time/slot_fates.h"

namespace droptest::sim {

/// The time scales of one link.
struct LinkTiming {
  double slot_seconds = 0;        ///< of one packet, positive
  double round_trip_seconds = 0;  ///< from a loss to the sender's knowledge of it, besides the slot
};

/// What it took to get one message across.
struct Delivery {
  std::uint64_t slots = 0;         ///< packet times from the first packet to the last one that was needed
  std::uint64_t slots_passed = 0;  ///< of the link in all, those of the waits among them
  std::uint64_t packets_sent = 0;  ///< transmissions, the first ones among them
  double waiting_seconds = 0;      ///< beyond the slots: for acknowledgements and timers
  std::uint64_t timeouts = 0;      ///< waits for feedback or a timer

  /// Beyond a message whose packets all arrive at once.
  double extra_seconds(std::uint64_t packets, double slot_seconds) const {
    return static_cast<double>(slots - packets) * slot_seconds + waiting_seconds;
  }
};

/// A protocol that repeats lost packets until all have arrived. The receiver's feedback is never lost.
/// Thread safety: all methods may be called from any thread at once.
class RetransmissionProtocol {
 public:
  virtual ~RetransmissionProtocol() = default;

  /// The walk of one message of `packets` packets along the link's slots, from slot 0 of `fates` on.
  /// Determinism: a pure function of its arguments. Throws: ConfigError for a link that loses so much that the message
  /// is still on its way after SlotFates::kMostLooks; expected_tries() says beforehand where that is to be feared.
  virtual Delivery deliver(SlotFates& fates, std::uint64_t packets, const LinkTiming& timing) const = 0;

  /// E[extra_seconds] of one message over a link with independent loss of rate p < 1. Source: stands beside each
  /// implementation.
  virtual double expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const = 0;

  /// Mean number of times that what is sent again as a whole (a packet; the message by go-back-0) is sent until it has
  /// arrived; infinity where it never does. Exact for independent loss, where it is that of a geometric variable.
  virtual double expected_tries(const LossProcess& process, std::uint64_t packets) const;
};

/// Tries beyond which no message is begun: a run would not end, or the time that it shows would mean nothing.
constexpr double kMostExpectedTries = 1000;

/// One entry: the "protocol" of a spec, a line for `droptest list`, and how to make it.
struct RetransmissionEntry {
  std::string_view protocol;
  std::string_view summary;
  std::unique_ptr<RetransmissionProtocol> (*make)(const Parameters&);
};

/// All known protocols, in the order in which they are listed.
const std::vector<RetransmissionEntry>& retransmission_protocols();

/// Makes the protocol that `parameters` describes: {"protocol": ..., and its own parameters}.
/// Throws: ConfigError for an unknown protocol (listing the known ones), an unknown or out-of-range parameter.
std::unique_ptr<RetransmissionProtocol> make_retransmission(const Parameters& parameters);

/// {"protocol": "selective_repeat", "timeout_microseconds": T}: lost packets, and only they, are sent again, round
/// after round; a round begins one round trip after the last one ended, or with a timeout T after that.
std::unique_ptr<RetransmissionProtocol> make_selective_repeat(const Parameters& parameters);

/// {"protocol": "go_back_n", "window_packets": W}: all from the lost packet on are sent again, W slots after it was
/// sent; W is one slot and a round trip where it is not given.
std::unique_ptr<RetransmissionProtocol> make_go_back_n(const Parameters& parameters);

/// {"protocol": "go_back_0", "window_packets": W}: the whole message is sent again, W slots after the lost packet.
std::unique_ptr<RetransmissionProtocol> make_go_back_0(const Parameters& parameters);

/// {"protocol": "timeout", "timeout_microseconds": T, "longest_timeout_microseconds": M}: lost packets are sent again
/// when a timer ends, which starts at T and doubles with each round up to M. Where M is not given it is 60 s, the least
/// that RFC 6298 (2.4 and 5.5) allows as a maximum, or T if that is longer. Without a maximum the mean of the waits
/// would not exist from a loss rate of 1/2 on.
std::unique_ptr<RetransmissionProtocol> make_timeout(const Parameters& parameters);

}  // namespace droptest::sim
