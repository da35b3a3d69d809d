// SPDX-License-Identifier: Apache-2.0
// Nothing is ever lost.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sim/loss/loss_process.h"
#include "sim/parameters.h"

namespace droptest::sim {

/// A reliable link: {"model": "none"}.
class NoLoss final : public LossProcess {
 public:
  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override;
  double loss_rate() const override { return 0; }
  double mean_burst_packets() const override { return 0; }
  double mean_gap_packets() const override;
  double burst_at_least(std::uint64_t packets) const override;
  double lost_count_variance(std::uint64_t n) const override;
  std::optional<ChainThresholds> thresholds() const override { return ChainThresholds{}; }
  std::string describe() const override;
};

/// Throws: ConfigError for any parameter other than "model".
std::unique_ptr<LossProcess> make_no_loss(const Parameters& parameters);

}  // namespace droptest::sim
