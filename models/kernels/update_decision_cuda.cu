// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>

#include "comm/device/kernel_launch.cuh"
#include "models/kernels/update_decision.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// One thread works, in the order of the CPU twin.
__global__ void decide_update_kernel(const double* losses, std::int64_t ranks, const double* squares, UpdateRule rule,
                                     double largest, double not_a_number, double* decision) {
  if (threadIdx.x != 0) return;
  const double first = losses[0] / rule.micro_batches;
  double difference = 0;
  for (std::int64_t r = 0; r < ranks; ++r) difference += losses[r] / rule.micro_batches - first;
  const double loss = first + difference / static_cast<double>(ranks);
  const double norm = sqrt(*squares);
  double factor = 1;
  if (!(fabs(loss) <= largest) || !(fabs(norm) <= largest)) {  // not finite
    factor = not_a_number;
  } else if (rule.max_gradient_norm > 0) {
    const double scale = rule.max_gradient_norm / (norm + 1e-6);
    factor = scale > 1.0 ? 1.0 : scale;
  }
  decision[0] = loss;
  decision[1] = norm;
  decision[2] = factor;
}

}  // namespace

void decide_update(comm::DeviceSpan<const double> losses, comm::DeviceSpan<const double> squares,
                   const UpdateRule& rule, comm::DeviceSpan<double> decision, comm::Stream& stream) {
  DROPTEST_CHECK(!losses.empty() && squares.size() == 1 && decision.size() == 3,
                 "decide_update: " + std::to_string(losses.size()) + " losses, " + std::to_string(squares.size()) +
                     " sums of squares, " + std::to_string(decision.size()) + " results");
  comm::launch("decide_update", decide_update_kernel, {1, 32, 0}, stream, losses.data(),
               static_cast<std::int64_t>(losses.size()), squares.data(), rule, std::numeric_limits<double>::max(),
               std::numeric_limits<double>::quiet_NaN(), decision.data());
}

}  // namespace droptest::models
