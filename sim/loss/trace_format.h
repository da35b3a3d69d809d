// SPDX-License-Identifier: Apache-2.0
// The three forms of a recorded loss trace; docs/formats.md describes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/loss/packet_mask.h"

namespace droptest::sim {

/// Largest number of packets of a trace: its bits take 1 GiB.
inline constexpr std::uint64_t kMostTracePackets = std::uint64_t{1} << 33;

/// The fates in the contents of a trace file: bits if they begin with "DTTRACE1", runs if they begin with
/// "droptest-trace-runs", else text of 0 (delivered) and 1 (lost).
/// Throws: ConfigError that names the file by `name` with line and column (text, runs) or the byte (bits).
PacketMask parse_trace(std::string_view contents, const std::string& name);

}  // namespace droptest::sim
