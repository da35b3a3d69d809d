// SPDX-License-Identifier: Apache-2.0
// Nouns: m packets, loss rate p, tau the slot, b the budget of rounds, w(k) the wait after round k: the round trip, or
// a timer.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "sim/recovery/retransmission.h"

namespace droptest::sim {
namespace {

// Longer waits count as this many slots: the link has forgotten its state in either case.
constexpr std::uint64_t kMostIdleSlots = 1'000'000'000;

// After so many doublings a timer is above any maximum.
constexpr std::uint64_t kMostDoublings = 1000;

// Terms of a sum over rounds below this share no longer change it.
constexpr double kNegligible = 1e-17;

// P(more than k rounds) with independent loss: 1 - (1 - p^k)^m.
double more_rounds_probability(double p, std::uint64_t packets, std::uint64_t rounds) {
  if (rounds == 0) return 1;
  // In logarithms: for small p^k, 1 - (1 - p^k)^m would lose all digits.
  return -std::expm1(static_cast<double>(packets) * std::log1p(-std::pow(p, static_cast<double>(rounds))));
}

}  // namespace

double RepeatTimer::wait_seconds(std::uint64_t round, const LinkTiming& timing) const {
  if (!first_seconds.has_value()) return timing.round_trip_seconds;
  const auto doublings = static_cast<int>(std::min(round, kMostDoublings)) - 1;
  return std::min(longest_seconds, std::ldexp(*first_seconds, doublings));
}

SelectiveRepeat::SelectiveRepeat(RoundBudget rounds, std::optional<Parity> parity, RepeatTimer timer)
    : Retransmission(rounds), parity_(std::move(parity)), timer_(timer) {}

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

// A round of the message begins when all of the round before could have been sent and the wait is over. So the slot of
// a packet's repetition does not depend on the other losses. The extra time counts the packets that are sent, and the
// waits.
Repair SelectiveRepeat::recover(const PacketMask& lost, const DrawAgain& draw_again, const LinkTiming& timing,
                                PacketMask& missing) const {
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
  Attempt attempt;
  for (std::uint64_t sent = missing.lost_count(); sent > 0; sent = missing.lost_count()) {
    if (attempt.number == most_rounds(n)) {
      if (is_reliable()) give_up(attempt.number, n);
      break;
    }
    ++attempt.number;
    const double wait = timer_.wait_seconds(attempt.number, timing);
    attempt.slot += lost.size() + std::min(kMostIdleSlots, timing.slots(wait));
    repair.waiting_seconds += wait;
    repair.extra_slots += static_cast<double>(sent);
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
  return repair;
}

std::optional<double> SelectiveRepeat::residual_rate(const LossProcess& process) const {
  if (is_reliable()) return 0;
  if (parity_.has_value() || !process.chain().has_value()) return std::nullopt;
  return std::pow(process.loss_rate(), static_cast<double>(*rounds()) + 1);
}

std::optional<double> SelectiveRepeat::residual_rate(const LossProcess& process, std::uint64_t /*data_packets*/) const {
  return residual_rate(process);
}

double SelectiveRepeat::expected_missing(double p, std::uint64_t /*packets*/) const {
  return is_reliable() ? 0 : std::pow(p, static_cast<double>(*rounds()) + 1);
}

// A packet is sent an (a + 1)-th time, a <= b, with probability p^a; the wait w(k), k <= b, occurs if there are more
// than k rounds. For unequal timers w(k) = T 2^(k-1), m = 1 and no budget the waits are T p / (1 - 2p).
double SelectiveRepeat::expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const {
  if (packets == 0 || p == 0) return 0;
  double sent_again = p / (1 - p);
  if (!is_reliable()) sent_again *= -std::expm1(static_cast<double>(*rounds()) * std::log(p));
  double waits = 0;
  for (std::uint64_t k = 1; is_reliable() || k <= *rounds(); ++k) {
    const double term = timer_.wait_seconds(k, timing) * more_rounds_probability(p, packets, k);
    waits += term;
    if (term <= kNegligible * waits) break;
  }
  return static_cast<double>(packets) * timing.slot_seconds * sent_again + waits;
}

std::string SelectiveRepeat::describe() const {
  std::string text = parity_.has_value() ? parity_->describe() + " + " : std::string();
  text += "selective_repeat(" + budget_text();
  if (timer_.first_seconds.has_value()) {
    text += ", timeout_seconds=" + std::to_string(*timer_.first_seconds) +
            ", longest_timeout_seconds=" + std::to_string(timer_.longest_seconds);
  }
  return text + ")";
}

}  // namespace droptest::sim
