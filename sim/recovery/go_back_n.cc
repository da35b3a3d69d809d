// SPDX-License-Identifier: Apache-2.0
// Nouns: m packets, loss rate p, s = 1 - p, W slots from a lost packet to its repetition, b the budget of rounds. The
// packets in the W - 1 slots between arrive out of order, and the receiver drops them. F(j) failures come before j
// packets are taken: a negative binomial variable.
#include <algorithm>
#include <cmath>

#include "sim/error.h"
#include "sim/log_gamma.h"
#include "sim/recovery/retransmission.h"

namespace droptest::sim {
namespace {

constexpr std::uint64_t kTilePackets = 512;

// P(F(j) <= b) = sum over k <= b of C(j + k - 1, k) s^j p^k.
double at_most_failures(double p, std::uint64_t taken, std::uint64_t budget) {
  const auto j = static_cast<double>(taken);
  double sum = 0;
  for (std::uint64_t failures = 0; failures <= budget; ++failures) {
    const auto k = static_cast<double>(failures);
    const double ways = log_gamma(j + k) - log_gamma(k + 1) - log_gamma(j);
    sum += std::exp(ways + j * std::log1p(-p) + (failures == 0 ? 0 : k * std::log(p)));
  }
  return std::min(sum, 1.0);
}

}  // namespace

GoBackN::GoBackN(RoundBudget rounds, std::optional<std::uint64_t> window_packets)
    : Retransmission(rounds), window_packets_(window_packets) {
  if (window_packets == 0U) throw ConfigError("window_packets: got 0, want at least 1");
}

// Packet i of the attempt after a goings back is in slot i + a W, whichever packets were lost.
Repair GoBackN::recover(const PacketMask& lost, const DrawAgain& draw_again, const LinkTiming& timing,
                        PacketMask& missing) const {
  const std::uint64_t n = missing.size();
  const std::uint64_t window = window_packets_.value_or(timing.window_slots());
  Repair repair;
  repair.lost_data_packets = lost.lost_count();
  std::uint64_t base = first_lost(lost);              // packets before it were taken
  std::uint64_t beyond = std::min(n, base + window);  // packets before it were sent
  PacketMask tile;
  Attempt attempt;
  while (base < n) {
    if (attempt.number == most_rounds(n)) {
      if (is_reliable()) give_up(attempt.number, n);
      break;
    }
    ++attempt.number;
    attempt.slot += window;
    repair.extra_slots += static_cast<double>(window);
    ++repair.rounds;
    const std::uint64_t begin = base;
    while (base < n) {
      tile.resize(std::min(kTilePackets, n - base));
      draw_again(attempt, base, tile);
      const std::uint64_t taken = first_lost(tile);
      base += taken;
      if (taken < tile.size()) break;
    }
    const std::uint64_t end = base < n ? std::min(n, base + window) : n;
    repair.resent_packets += std::min(end, beyond) - begin;  // the others go out for the first time
    beyond = std::max(beyond, end);
  }
  for (std::uint64_t i = base; i < n; ++i) missing.set_lost(i);
  return repair;
}

// Packet j is taken within the budget if no more than b failures come before it is.
double GoBackN::expected_missing(double p, std::uint64_t packets) const {
  if (is_reliable() || packets == 0 || p == 0) return 0;
  double taken = 0;
  for (std::uint64_t j = 1; j <= packets; ++j) taken += at_most_failures(p, j, *rounds());
  return 1 - taken / static_cast<double>(packets);
}

// Each packet fails p / (1 - p) times without a budget, and each failure costs W slots; with a budget min(F(m), b) do.
double GoBackN::expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const {
  if (packets == 0 || p == 0) return 0;
  const auto window = static_cast<double>(window_packets_.value_or(timing.window_slots()));
  double failures = static_cast<double>(packets) * p / (1 - p);
  if (!is_reliable()) {
    failures = 0;
    for (std::uint64_t k = 1; k <= *rounds(); ++k) failures += 1 - at_most_failures(p, packets, k - 1);
  }
  return failures * window * timing.slot_seconds;
}

std::string GoBackN::describe() const {
  const std::string window = window_packets_.has_value() ? std::to_string(*window_packets_) : "a round trip";
  return "go_back_n(window_packets=" + window + ", " + budget_text() + ")";
}

}  // namespace droptest::sim
