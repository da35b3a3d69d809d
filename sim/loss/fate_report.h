// SPDX-License-Identifier: Apache-2.0
// The fates of a piece of a link, compared with theory: the report of `droptest fates`.
#pragma once

#include <cstdint>
#include <string>

#include "sim/loss/link.h"
#include "sim/loss/loss_process.h"
#include "sim/loss/packet_mask.h"

namespace droptest::sim {

struct FateReport {
  std::uint64_t first_packet = 0;
  PacketMask fates;
  std::uint64_t packets = 0;
  std::uint64_t lost = 0;
  std::uint64_t bursts = 0;  ///< runs of losses, cut where the piece begins and ends
  double configured_rate = 0;
  double configured_mean_burst_packets = 0;
  double realised_rate = 0;       ///< 0 without packets
  double mean_burst_packets = 0;  ///< lost / bursts; 0 without bursts
  /// (lost - expected) / standard deviation, by the process's count variance. If the variance is 0: 0 if nothing
  /// deviates, else infinity with the sign of the deviation.
  double z = 0;
  std::uint64_t digest = 0;  ///< digest of the fates of this piece only
};

/// Largest number of packets of one report: its mask has 1 GiB.
inline constexpr std::uint64_t kMostReportedPackets = std::uint64_t{1} << 33;

/// The fates of packets first_packet to first_packet + packets - 1 of a link.
/// Throws: ConfigError for more than kMostReportedPackets.
FateReport report_fates(const LossProcess& process, std::uint64_t seed, const Link& link, std::uint64_t first_packet,
                        std::uint64_t packets);

/// The fates of one message of `packets` packets at a place; z follows from the process's message_count().
FateReport report_fates(const LossProcess& process, std::uint64_t seed, const Link& link, const MessagePosition& place,
                        std::uint64_t packets);

/// One line per burst, "<index of its first packet> <length in packets>", below a line that names the columns.
std::string render_runs(const FateReport& report);

/// One character per packet, "1" for a lost one, 64 to a line.
std::string render_bits(const FateReport& report);

}  // namespace droptest::sim
