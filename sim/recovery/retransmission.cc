// SPDX-License-Identifier: Apache-2.0
#include "sim/recovery/retransmission.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "sim/error.h"

namespace droptest::sim {
namespace {

constexpr std::uint64_t kTilePackets = 512;

// First lost packet of `mask`; its size where there is none.
std::uint64_t first_lost(const PacketMask& mask) {
  const auto words = mask.words();
  for (std::size_t w = 0; w < words.size(); ++w) {
    if (words[w] != 0) return 64 * w + static_cast<std::uint64_t>(std::countr_zero(words[w]));
  }
  return mask.size();
}

std::string budget_text(const RoundBudget& rounds) {
  return rounds.has_value() ? "rounds=" + std::to_string(*rounds) : "rounds=unlimited";
}

std::uint64_t most_rounds(const RoundBudget& rounds) { return rounds.value_or(LinkRecovery::kMostRounds); }

}  // namespace

SelectiveRepeat::SelectiveRepeat(RoundBudget rounds, std::optional<Parity> parity)
    : rounds_(rounds), parity_(std::move(parity)) {}

std::uint64_t SelectiveRepeat::first_packets(std::uint64_t data_packets) const {
  return parity_.has_value() ? parity_->first_packets(data_packets) : data_packets;
}

std::uint64_t SelectiveRepeat::position(std::uint64_t data_packet, std::uint64_t data_packets) const {
  return parity_.has_value() ? parity_->position(data_packet, data_packets) : data_packet;
}

// Clears the packets of blocks that can be repaired now; parity_lost has each block's number of lost parity packets.
void SelectiveRepeat::drop_repaired(const std::vector<std::uint64_t>& parity_lost, PacketMask& missing) const {
  const std::uint64_t n = missing.size();
  PacketMask kept(n);
  for (std::uint64_t block = 0; block < parity_lost.size(); ++block) {
    const std::uint64_t first = block * parity_->code().data;
    const std::uint64_t end = first + parity_->block_data(block, n);
    std::uint64_t losses = parity_lost[block];
    for (std::uint64_t i = first; i < end; ++i) losses += missing.lost(i) ? 1 : 0;
    if (losses <= parity_->code().parity) continue;
    for (std::uint64_t i = first; i < end; ++i) {
      if (missing.lost(i)) kept.set_lost(i);
    }
  }
  missing = std::move(kept);
}

Repair SelectiveRepeat::recover(const PacketMask& lost, const DrawAgain& draw_again, PacketMask& missing) const {
  const std::uint64_t n = missing.size();
  Repair repair;
  if (!lost.any_lost()) return repair;
  std::vector<std::uint64_t> parity_lost;
  if (parity_.has_value()) {
    for (std::uint64_t i = 0; i < n; ++i) {
      if (lost.lost(parity_->position(i, n))) missing.set_lost(i);
    }
    repair.lost_data_packets = missing.lost_count();
    parity_lost.resize(parity_->blocks(n));
    for (std::uint64_t block = 0; block < parity_lost.size(); ++block) {
      for (std::uint64_t j = 0; j < parity_->code().parity; ++j) {
        parity_lost[block] += lost.lost(parity_->parity_position(block, j, n)) ? 1 : 0;
      }
    }
    drop_repaired(parity_lost, missing);
  } else {
    missing = lost;
    repair.lost_data_packets = missing.lost_count();
  }
  PacketMask again;
  for (std::uint64_t attempt = 1; attempt <= most_rounds(rounds_); ++attempt) {
    const std::uint64_t sent = missing.lost_count();
    if (sent == 0) return repair;
    repair.resent_packets += sent;
    ++repair.rounds;
    // Fates are drawn from the first missing packet on; those of packets that arrived have no effect.
    const std::uint64_t begin = first_lost(missing) & ~std::uint64_t{63};
    again.resize(n - begin);
    draw_again(attempt, begin, again);
    const auto words = missing.words();
    for (std::size_t w = 0; w < again.words().size(); ++w) words[w + begin / 64] &= again.words()[w];
    if (parity_.has_value()) drop_repaired(parity_lost, missing);
  }
  if (is_reliable()) missing.resize(n);
  return repair;
}

std::optional<double> SelectiveRepeat::residual_rate(const LossProcess& process) const {
  if (is_reliable()) return 0;
  if (parity_.has_value() || !loss_chain(process).has_value()) return std::nullopt;
  return std::pow(process.loss_rate(), static_cast<double>(*rounds_) + 1);
}

std::optional<double> SelectiveRepeat::residual_rate(const LossProcess& process, std::uint64_t /*data_packets*/) const {
  return residual_rate(process);
}

std::string SelectiveRepeat::describe() const {
  return (parity_.has_value() ? parity_->describe() + " + " : std::string()) + "selective_repeat(" +
         budget_text(rounds_) + ")";
}

GoBackN::GoBackN(RoundBudget rounds, std::uint64_t window_packets) : rounds_(rounds), window_packets_(window_packets) {
  if (window_packets == 0) throw ConfigError("window_packets: got 0, want at least 1");
}

Repair GoBackN::recover(const PacketMask& lost, const DrawAgain& draw_again, PacketMask& missing) const {
  const std::uint64_t n = missing.size();
  Repair repair;
  repair.lost_data_packets = lost.lost_count();
  std::uint64_t base = first_lost(lost);                       // packets before it were taken
  std::uint64_t beyond = std::min(n, base + window_packets_);  // packets before it were sent
  PacketMask tile;
  for (std::uint64_t attempt = 1; base < n && attempt <= most_rounds(rounds_); ++attempt) {
    ++repair.rounds;
    const std::uint64_t begin = base;
    while (base < n) {
      tile.resize(std::min(kTilePackets, n - base));
      draw_again(attempt, base, tile);
      const std::uint64_t taken = first_lost(tile);
      base += taken;
      if (taken < tile.size()) break;
    }
    const std::uint64_t end = base < n ? std::min(n, base + window_packets_) : n;
    repair.resent_packets += std::min(end, beyond) - begin;  // the others go out for the first time
    beyond = std::max(beyond, end);
  }
  if (is_reliable()) return repair;
  for (std::uint64_t i = base; i < n; ++i) missing.set_lost(i);
  return repair;
}

std::optional<double> GoBackN::residual_rate(const LossProcess& /*process*/) const {
  return is_reliable() ? std::optional<double>(0) : std::nullopt;
}

std::optional<double> GoBackN::residual_rate(const LossProcess& process, std::uint64_t /*data_packets*/) const {
  return residual_rate(process);
}

std::string GoBackN::describe() const {
  return "go_back_n(window_packets=" + std::to_string(window_packets_) + ", " + budget_text(rounds_) + ")";
}

double expected_selective_repeat_rounds(double p, std::uint64_t data_packets) {
  DROPTEST_CHECK(p >= 0 && p < 1, "p");
  double sum = 0;
  double power = 1;
  for (double term = 1; data_packets > 0 && term > 0; power *= p) {
    // 1 - (1 - p^k)^n without cancellation where p^k is small.
    term = power < 1 ? -std::expm1(static_cast<double>(data_packets) * std::log1p(-power)) : 1;
    sum += term;
    if (term < 1e-17 * sum) break;
  }
  return sum;
}

double expected_go_back_n_slots(double p, std::uint64_t window_packets, std::uint64_t data_packets) {
  DROPTEST_CHECK(p >= 0 && p < 1, "p");
  return static_cast<double>(data_packets) * (1 + p * static_cast<double>(window_packets) / (1 - p));
}

}  // namespace droptest::sim
