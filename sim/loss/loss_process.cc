// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/loss_process.h"

#include <cmath>

namespace droptest::sim {

// The first packet arrives, and the gap that it is in goes on. The product is exact if deliveries in a row have no
// memory, as those of Bernoulli and of a Gilbert-Elliott chain that loses nothing while it is good.
double LossProcess::all_arrive_probability(std::uint64_t packets) const {
  if (!can_lose()) return 1;
  const double known = gap_at_least(packets);
  const double goes_on = std::isnan(known) ? std::exp(-static_cast<double>(packets - 1) / mean_gap_packets()) : known;
  return (1 - loss_rate()) * goes_on;
}

}  // namespace droptest::sim
