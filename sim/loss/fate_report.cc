// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/fate_report.h"

#include <cmath>
#include <limits>

#include "sim/error.h"
#include "sim/loss/burst_histogram.h"
#include "sim/loss/fate_digest.h"

namespace droptest::sim {

FateReport report_fates(const LossProcess& process, std::uint64_t seed, const Link& link, std::uint64_t first_packet,
                        std::uint64_t packets) {
  return report_fates(process, seed, link, MessagePosition{first_packet, 0, 0, std::nullopt}, packets);
}

FateReport report_fates(const LossProcess& process, std::uint64_t seed, const Link& link, const MessagePosition& place,
                        std::uint64_t packets) {
  if (packets > kMostReportedPackets) {
    throw ConfigError("fates: count: got " + std::to_string(packets) + " packets, want at most " +
                      std::to_string(kMostReportedPackets));
  }
  FateReport report;
  report.first_packet = place.first_packet;
  report.packets = packets;
  report.fates.resize(packets);
  process.draw_message(seed, link, place, report.fates);
  report.lost = report.fates.lost_count();

  BurstHistogram histogram;
  histogram.add(report.fates);
  report.bursts = histogram.bursts();
  FateDigest digest(link);
  digest.add(place.first_packet, report.fates);
  report.digest = digest.value();

  report.configured_rate = process.loss_rate();
  report.configured_mean_burst_packets = process.mean_burst_packets();
  const auto lost = static_cast<double>(report.lost);
  const auto count = static_cast<double>(packets);
  if (packets > 0) report.realised_rate = lost / count;
  if (report.bursts > 0) report.mean_burst_packets = lost / static_cast<double>(report.bursts);
  const LostCount expected = process.message_count(seed, link, place, packets);
  const double deviation = lost - expected.mean;
  if (expected.variance > 0) {
    report.z = deviation / std::sqrt(expected.variance);
  } else if (deviation != 0) {
    report.z = std::copysign(std::numeric_limits<double>::infinity(), deviation);
  }
  return report;
}

std::string render_runs(const FateReport& report) {
  std::string text = "first_packet burst_packets\n";
  for (std::uint64_t packet = 0; packet < report.packets;) {
    if (report.fates.words()[packet >> 6] >> (packet & 63) == 0) {
      packet = ((packet >> 6) + 1) << 6;
      continue;
    }
    std::uint64_t end = packet;
    while (end < report.packets && report.fates.lost(end)) ++end;
    if (end > packet) {
      text += std::to_string(report.first_packet + packet) + " " + std::to_string(end - packet) + "\n";
    }
    packet = end + 1;  // packet `end` was delivered, or is past the end
  }
  return text;
}

std::string render_bits(const FateReport& report) {
  std::string text;
  text.reserve(report.packets + report.packets / 64 + 1);
  for (std::uint64_t packet = 0; packet < report.packets; ++packet) {
    text += report.fates.lost(packet) ? '1' : '0';
    if (packet % 64 == 63 || packet + 1 == report.packets) text += '\n';
  }
  return text;
}

}  // namespace droptest::sim
