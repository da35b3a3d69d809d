// SPDX-License-Identifier: Apache-2.0
// Independent loss: each packet is lost with the same probability, whatever happened to the others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sim/loss/loss_process.h"
#include "sim/parameters.h"

namespace droptest::sim {

/// Packet t is lost iff its draw (Purpose::kLossTransition) is below p.
/// Monotone: with one seed the packets lost at a lower rate are a subset of those lost at a higher one.
class Bernoulli final : public LossProcess {
 public:
  /// Throws: ConfigError unless p_loss is 0 or in [2^-32, 1].
  explicit Bernoulli(double p_loss);

  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override;
  double loss_rate() const override { return p_; }
  double mean_burst_packets() const override;
  double mean_gap_packets() const override;
  double burst_at_least(std::uint64_t packets) const override;
  double gap_at_least(std::uint64_t packets) const override;
  double lost_count_variance(std::uint64_t n) const override;
  std::optional<LossChain> chain() const override { return LossChain{0, 0, p_, p_}; }
  std::optional<ChainThresholds> thresholds() const override { return ChainThresholds{threshold_, threshold_}; }
  std::optional<FateChain> fate_chain(double packet_microseconds) const override;
  std::string describe() const override;

 private:
  double p_;
  std::uint64_t threshold_;
};

/// {"model": "bernoulli", "loss_rate": p}. Throws: ConfigError for anything else.
std::unique_ptr<LossProcess> make_bernoulli(const Parameters& parameters);

}  // namespace droptest::sim
