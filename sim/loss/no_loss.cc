// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/no_loss.h"

#include <limits>

namespace droptest::sim {

void NoLoss::draw(std::uint64_t /*seed*/, const Link& /*link*/, std::uint64_t /*first_packet*/,
                  PacketMask& lost) const {
  lost.resize(lost.size());
}

double NoLoss::mean_gap_packets() const { return std::numeric_limits<double>::infinity(); }

double NoLoss::burst_at_least(std::uint64_t /*packets*/) const { return 0; }

double NoLoss::lost_count_variance(std::uint64_t /*n*/) const { return 0; }

std::string NoLoss::describe() const { return "none"; }

std::unique_ptr<LossProcess> make_no_loss(const Parameters& parameters) {
  parameters.allow_only({"model"});
  return std::make_unique<NoLoss>();
}

}  // namespace droptest::sim
