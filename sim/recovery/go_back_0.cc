// SPDX-License-Identifier: Apache-2.0
// Nouns: m packets, s = 1 - p the chance that a packet arrives, W slots from a lost packet to the new start, b the
// budget of rounds, q = 1 - s^m the chance that a try fails.
#include <algorithm>
#include <cmath>

#include "sim/error.h"
#include "sim/recovery/retransmission.h"

namespace droptest::sim {
namespace {

constexpr std::uint64_t kTilePackets = 512;

}  // namespace

GoBack0::GoBack0(RoundBudget rounds, std::optional<std::uint64_t> window_packets)
    : Retransmission(rounds), window_packets_(window_packets) {
  if (window_packets == 0U) throw ConfigError("window_packets: got 0, want at least 1");
}

// The fates of a try are those of slots that begin when the whole message of the try before, and the window after it,
// have passed. So these slots do not depend on the packet that was lost. The extra time counts the slots up to that
// loss and the window after it.
Repair GoBack0::recover(const PacketMask& lost, const DrawAgain& draw_again, const LinkTiming& timing,
                        PacketMask& missing) const {
  const std::uint64_t n = missing.size();
  const std::uint64_t window = window_packets_.value_or(timing.window_slots());
  Repair repair;
  repair.lost_data_packets = lost.lost_count();
  std::uint64_t lost_at = first_lost(lost);
  PacketMask tile;
  Attempt attempt;
  while (lost_at < n) {
    if (attempt.number == most_rounds(n)) {
      if (is_reliable()) give_up(attempt.number, n);
      break;
    }
    ++attempt.number;
    attempt.slot += n + window;
    repair.extra_slots += static_cast<double>(lost_at) + static_cast<double>(window);
    repair.resent_packets += std::min(n, lost_at + window);
    ++repair.rounds;
    for (lost_at = 0; lost_at < n;) {
      tile.resize(std::min(kTilePackets, n - lost_at));
      draw_again(attempt, lost_at, tile);
      const std::uint64_t taken = first_lost(tile);
      lost_at += taken;
      if (taken < tile.size()) break;
    }
  }
  if (lost_at < n) {
    for (std::uint64_t i = 0; i < n; ++i) missing.set_lost(i);
  }
  return repair;
}

double GoBack0::expected_missing(double p, std::uint64_t packets) const {
  if (is_reliable()) return 0;
  const double fails = -std::expm1(static_cast<double>(packets) * std::log1p(-p));
  return std::pow(fails, static_cast<double>(*rounds()) + 1);
}

// Without a budget: the slots until a run of m deliveries are E = (1 - s^m) / (p s^m) if the new start follows the loss
// at once (W = 1); the (1 - s^m) / s^m failed tries cost W - 1 slots more each. Feller, vol. 1, XIII.7. If there is a
// budget, q^a is the chance that try a fails, and a failed try costs W and the sum over j < m of j p s^j / q slots
// before its loss.
double GoBack0::expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const {
  if (p == 0 || packets == 0) return 0;
  const auto m = static_cast<double>(packets);
  const auto window = static_cast<double>(window_packets_.value_or(timing.window_slots()));
  if (is_reliable()) {
    const double failures = std::expm1(-m * std::log1p(-p));  // s^-m - 1
    return (failures / p + failures * (window - 1) - m) * timing.slot_seconds;
  }
  double before = 0;
  for (std::uint64_t j = 1; j < packets; ++j) {
    before += static_cast<double>(j) * p * std::exp(static_cast<double>(j) * std::log1p(-p));
  }
  const double fails = -std::expm1(m * std::log1p(-p));
  double failures = 0;
  for (std::uint64_t a = 1; a <= *rounds(); ++a) failures += std::pow(fails, static_cast<double>(a));
  return failures * (before / fails + window) * timing.slot_seconds;
}

double GoBack0::expected_tries(const LossProcess& process, std::uint64_t packets) const {
  return 1 / process.all_arrive_probability(std::max(packets, std::uint64_t{1}));
}

std::string GoBack0::describe() const {
  const std::string window = window_packets_.has_value() ? std::to_string(*window_packets_) : "a round trip";
  return "go_back_0(window_packets=" + window + ", " + budget_text() + ")";
}

}  // namespace droptest::sim
