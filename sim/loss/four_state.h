// SPDX-License-Identifier: Apache-2.0
// netem's four-state loss: bursts with deliveries inside them, and isolated losses between them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "sim/loss/loss_process.h"
#include "sim/parameters.h"

namespace droptest::sim {

/// Transition probabilities per packet, with netem's names. States: 1 delivered in a gap, 2 delivered within a burst, 3
/// lost within a burst, 4 lost singly in a gap; 4 always goes to 1.
/// Source: Salsano, Ludovici, Ordine, "Definition of a general and intuitive loss model for packet networks" (2012);
/// `tc-netem`, loss state.
struct FourStateRates {
  double p13 = 0;
  double p31 = 1;
  double p32 = 0;
  double p23 = 1;
  double p14 = 0;
};

/// The draw of packet t (Purpose::kLossTransition) moves the chain to the state of packet t, which says whether it is
/// lost, as in netem. Each draw is a map from states to states. The state at t is the image of all maps up to t; it is
/// found by composing them backwards until they agree on one state (coupling from the past, Propp and Wilson 1996). So
/// fates are stationary from packet 0 and pure in the index. A higher p13 does not always only add losses: this chain
/// has no monotone coupling.
/// Cost: a draw looks back mean_look_back() packets on average.
class FourState final : public LossProcess {
 public:
  static constexpr double kMostLookBack = 1e6;  ///< packets, on average

  /// Throws: ConfigError for a rate that is not 0 or in [2^-32, 1], p13 + p14 or p31 + p32 above 1, a burst that never
  /// ends, and a look-back above kMostLookBack.
  explicit FourState(const FourStateRates& rates);

  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override;
  double loss_rate() const override;
  double mean_burst_packets() const override;
  double mean_gap_packets() const override;
  double burst_at_least(std::uint64_t packets) const override;
  double lost_count_variance(std::uint64_t n) const override { return chain_of_fates().lost_count_variance(n); }
  std::optional<FateChain> fate_chain(double /*packet_microseconds*/) const override { return chain_of_fates(); }
  std::string describe() const override;

  /// Correlation of the fates of two packets that are `lag` apart; 0 for lag > 0 if nothing or everything is lost.
  double autocorrelation(std::uint64_t lag) const;
  /// Packets until the maps agree, on average; infinity if they never do.
  double mean_look_back() const;
  /// Long-run share of states 1 to 4.
  const std::array<double, 4>& shares() const { return shares_; }

 private:
  struct Word;  ///< the draws of 64 packets
  Word read_word(std::uint64_t seed, const Link& link, std::uint64_t word) const;
  /// Moves `state` through a word; returns the bits of lost packets.
  std::uint64_t walk(const Word& word, unsigned& state) const;
  unsigned next(unsigned state, std::uint64_t draw) const;
  unsigned state_before(std::uint64_t seed, const Link& link, std::uint64_t word) const;
  bool recurs(unsigned state) const { return shares_[state] > 0; }
  double p_burst_begins() const;
  FateChain chain_of_fates() const;

  FourStateRates rates_;
  std::array<double, 4> shares_{};
  std::uint64_t to_lost_;         ///< state 1: draws below it go to 3
  std::uint64_t leaves_;          ///< state 1: draws from to_lost_ up to it go to 4
  std::uint64_t enters_;          ///< state 2: draws below it go to 3
  std::uint64_t stays_;           ///< state 3: draws below it stay
  std::uint64_t stays_in_burst_;  ///< state 3: draws from stays_ up to it go to 2, the others to 1
};

/// {"model": "four_state", "p13": ..., "p31", "p32", "p23", "p14"}: netem's defaults for all but p13 (1 - p13, 0, 1,
/// 0).
std::unique_ptr<LossProcess> make_four_state(const Parameters& parameters);

}  // namespace droptest::sim
