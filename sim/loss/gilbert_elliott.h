// SPDX-License-Identifier: Apache-2.0
// Bursty loss: a link is good or bad for a while, and loses packets at another rate in each state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sim/loss/loss_process.h"
#include "sim/parameters.h"
#include "sim/random/philox.h"

namespace droptest::sim {

/// The four probabilities of the two-state chain, per packet.
/// Source: Gilbert, BSTJ 39 (1960); Elliott, BSTJ 42 (1963). Their k and h are 1 - loss_good and 1 - loss_bad.
struct GilbertElliottRates {
  double p_good_to_bad = 0;
  double p_bad_to_good = 1;
  double loss_good = 0;
  double loss_bad = 1;
};

/// The rates of the chain without noise (loss_good = 0, loss_bad = 1) that has this loss rate and mean burst:
/// r = 1 / B, p = L / (B (1 - L)).
/// Throws: ConfigError unless loss_rate is in [0, 1), mean_burst_packets >= 1 and p <= 1, that is B >= L / (1 - L).
GilbertElliottRates rates_of_burst(double loss_rate, double mean_burst_packets);

/// The state of packet t follows from its draw (Purpose::kLossTransition) and the state before; then packet t is lost
/// with the loss probability of its own state (Purpose::kLossEmission). docs/fates.md says how a state is found without
/// its past. Stationary from packet 0.
/// Monotone: if p + r <= 1 and loss_good <= loss_bad, the packets lost at a lower p are, at equal r and seed, a subset
/// of those lost at a higher one.
/// Cost: a draw looks back 1 / min(p + r, 2 - p - r) packets on average.
class GilbertElliott final : public LossProcess {
 public:
  /// The smallest p + r and 2 - p - r: the mean look-back is at most 10^6 packets.
  static constexpr double kSmallestDecisive = 1e-6;

  /// Throws: ConfigError unless each rate is 0 or in [2^-32, 1], and p + r in [10^-6, 2 - 10^-6].
  explicit GilbertElliott(const GilbertElliottRates& rates);
  /// A chain for theory, without draws of fates: each rate in [0, 1], and p + r above 0.
  static GilbertElliott for_theory(const GilbertElliottRates& rates);

  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override;
  double loss_rate() const override;
  double mean_burst_packets() const override;
  double mean_gap_packets() const override;
  double burst_at_least(std::uint64_t packets) const override;
  double gap_at_least(std::uint64_t packets) const override;
  double lost_count_variance(std::uint64_t n) const override;
  std::string describe() const override;

  std::optional<LossChain> chain() const override;
  std::optional<ChainThresholds> thresholds() const override;
  std::optional<FateChain> fate_chain(double /*packet_microseconds*/) const override { return chain_of_fates(); }
  const GilbertElliottRates& rates() const { return rates_; }

  /// Sets the bit of each place first + i at which the chain is bad, from draws of `purpose`.
  void draw_states(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first, PacketMask& bad) const;

  /// Turns the states of packets, from first_packet on, into their fates by the draws of the link: sets the bit of each
  /// lost one, and clears it for the others.
  void lose_in_states(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& bad) const;

  /// Correlation of the fates of two packets that are `lag` apart; 0 for lag > 0 if nothing or everything is lost.
  double autocorrelation(std::uint64_t lag) const;

 private:
  enum class Use : std::uint8_t { kFates, kTheory };
  GilbertElliott(const GilbertElliottRates& rates, Use use);
  FateChain chain_of_fates() const;
  /// Whether the link is bad at the packet before 64 * word.
  bool bad_before(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t word) const;
  /// Writes the states of the places of `mask` in pieces of whole words. change(first word, states) may alter each
  /// piece before it is written.
  template <class Change>
  void walk_states(std::uint64_t seed, const Link& link, Purpose purpose, std::uint64_t first, PacketMask& mask,
                   const Change& change) const;
  /// Share of losses that are the last of their burst, times the loss rate: P(packet t lost, packet t + 1 delivered).
  double p_burst_ends() const;
  double p_delivered() const;

  GilbertElliottRates rates_;
  std::uint64_t to_bad_;        ///< draws below it move either state to bad
  std::uint64_t to_good_;       ///< draws not below it move either state to good
  bool middle_swaps_;           ///< the draws in between swap the state (p + r > 1) instead of keeping it
  std::uint64_t lost_in_good_;  ///< threshold of the emission draws in the good state
  std::uint64_t lost_in_bad_;   ///< threshold of the emission draws in the bad state
};

/// {"model": "gilbert_elliott", "p_good_to_bad", "p_bad_to_good", "loss_good", "loss_bad"}, or {"model":
/// "gilbert_elliott", "loss_rate", "mean_burst_packets"}. Throws: ConfigError for anything else, and for both forms at
/// once.
std::unique_ptr<LossProcess> make_gilbert_elliott(const Parameters& parameters);

}  // namespace droptest::sim
