// SPDX-License-Identifier: Apache-2.0
// How the number of losses on a link depends on the losses before: the second-order theory of chains of states.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace droptest::sim {

/// Covariances, by state, of a number of earlier losses with the event that a packet is in that state. They add up to
/// 0.
using StateWeights = std::array<double, 4>;

/// A loss process as a chain of at most four states: the draw of a packet (Purpose::kLossTransition) moves the chain to
/// the state of the packet, which is then lost with the loss rate of its state. All chains of a link share its draws,
/// so the losses of two chains are correlated, too. In a chain of two states, state 0 is the good one.
class FateChain {
 public:
  static constexpr std::size_t kMostStates = 4;
  using Matrix = std::array<std::array<double, kMostStates>, kMostStates>;

  struct State {
    double share = 0;  ///< stationary probability of the state
    double loss_rate = 0;
    std::array<double, kMostStates> to{};  ///< probabilities of the next state
    /// The next state by the draw: targets[0] below the first threshold, else targets[1] below the second one, else
    /// targets[2].
    std::array<std::uint64_t, 2> below{};
    std::array<std::uint8_t, 3> targets{};
    friend bool operator==(const State&, const State&) = default;
  };

  /// A chain of two states, with the probabilities of Gilbert-Elliott and the thresholds of the moves to bad from
  /// either state.
  static FateChain of_two(const State& good, const State& bad);
  static FateChain of_four(const std::array<State, kMostStates>& states);

  /// Whether both have the same states for all draws, and the same loss rates.
  friend bool operator==(const FateChain&, const FateChain&) = default;

  double loss_rate() const;
  /// Variance of the number lost among n consecutive packets. Source: Hasslinger and Hohlfeld 2008.
  double lost_count_variance(std::uint64_t n) const;
  /// Covariance of the fates of two packets that are `lag` > 0 apart.
  double fate_covariance(std::uint64_t lag) const;

  /// The covariances of the loss of one packet with its state.
  StateWeights loss() const;
  /// The covariances of the loss of one packet under `other` with its state in this chain. Cost: some matrix products
  /// over all pairs of states.
  StateWeights loss_under(const FateChain& other) const;
  /// The covariances of the losses of n consecutive packets with the state of the last one, from the weights of one
  /// packet.
  StateWeights spread(const StateWeights& of_one, std::uint64_t n) const;
  /// The weights of the same losses for the state `packets` packets later.
  StateWeights later(const StateWeights& weights, std::uint64_t packets) const;
  /// Covariance of the losses behind `weights` with the number lost among the next n packets.
  double covariance(const StateWeights& weights, std::uint64_t n) const;

 private:
  std::size_t next(std::size_t state, std::uint64_t draw) const;
  /// P(this chain is in state j and the other one in state i), by i and j, for the same packet.
  Matrix joint_shares(const FateChain& other) const;
  Matrix deviations() const;
  double forgetting() const { return states_[0].to[1] + states_[1].to[0]; }  ///< 1 - lambda of a chain of two states

  std::size_t count_ = 0;
  std::array<State, kMostStates> states_{};
};

}  // namespace droptest::sim
