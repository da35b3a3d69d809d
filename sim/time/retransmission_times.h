// SPDX-License-Identifier: Apache-2.0
// The times that protocols take from a spec.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/time/link_cost.h"
#include "sim/time/retransmission.h"

namespace droptest::sim {

/// "timeout_microseconds", in seconds; absent where it is not given. Throws: ConfigError out of range.
inline std::optional<double> timeout_seconds(const Parameters& parameters) {
  if (!parameters.has("timeout_microseconds")) return std::nullopt;
  return parameters.number("timeout_microseconds", 1e-3, 1e12) * 1e-6;
}

/// "window_packets"; absent where it is not given. Throws: ConfigError out of range.
inline std::optional<std::uint64_t> window_packets(const Parameters& parameters) {
  if (!parameters.has("window_packets")) return std::nullopt;
  return static_cast<std::uint64_t>(parameters.integer("window_packets", 1, 1'000'000'000));
}

/// W: slots from the one that lost a packet to the one that sends it again. The slot itself and a round trip where no
/// window is given.
inline std::uint64_t window_slots(std::optional<std::uint64_t> window, const LinkTiming& timing) {
  return window ? *window : 1 + whole_slots(timing.round_trip_seconds + timing.slot_seconds / 2, timing.slot_seconds);
}

}  // namespace droptest::sim
