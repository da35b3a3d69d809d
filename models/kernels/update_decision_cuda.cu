// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>

#include "comm/device/kernel_launch.cuh"
#include "models/kernels/update_decision.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// UpdateRule::replica_of().
__device__ std::int64_t replica_of(const UpdateRule& rule, std::int64_t rank) {
  return rank / rule.data_stride % rule.data_ranks * rule.sequence_ranks +
         rank / rule.sequence_stride % rule.sequence_ranks;
}

/// One thread works, in the order of the CPU twin.
__global__ void decide_update_kernel(const double* numbers, std::int64_t ranks, int rank, UpdateRule rule,
                                     double largest, double not_a_number, double* decision) {
  if (threadIdx.x != 0) return;
  double first = 0;
  double difference = 0;
  std::int64_t losses = 0;
  for (std::int64_t r = 0; r < ranks; ++r) {
    if (r / rule.pipeline_stride % rule.pipeline_ranks != rule.head_rank) continue;
    const double loss = numbers[2 * r] / rule.loss_divisor;
    if (losses++ == 0) first = loss;
    difference += loss - first;
  }
  const double loss = first + difference / static_cast<double>(losses);
  double of_first = 0;
  double of_own = 0;
  double squares_difference = 0;
  const int replicas = rule.data_ranks * rule.sequence_ranks;
  for (int replica = 0; replica < replicas; ++replica) {
    double squares = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      if (replica_of(rule, r) != replica) continue;
      const double of_rank = numbers[2 * r + 1];
      const bool is_missed = rule.flags == UpdateRule::Flags::kMissed && r != rank;
      if (!is_missed || fabs(of_rank) <= largest) squares += of_rank;
    }
    if (replica == 0) of_first = squares;
    if (replica == replica_of(rule, rank)) of_own = squares;
    squares_difference += squares - of_first;
  }
  const double mean = of_first + squares_difference / replicas;
  const double norm = sqrt(rule.norm == UpdateRule::Norm::kAgreed ? mean : of_own) / rule.loss_scale;
  double factor = 1 / rule.loss_scale;
  if (!(fabs(loss) <= largest) || !(fabs(mean) <= largest)) {  // not finite
    factor = not_a_number;
  } else if (rule.max_gradient_norm > 0) {
    const double scale = rule.max_gradient_norm / (norm + 1e-6);
    factor = (scale > 1.0 ? 1.0 : scale) / rule.loss_scale;
  }
  decision[0] = loss;
  decision[1] = norm;
  decision[2] = factor;
}

}  // namespace

void decide_update(comm::DeviceSpan<const double> numbers, int rank, const UpdateRule& rule,
                   comm::DeviceSpan<double> decision, comm::Stream& stream) {
  DROPTEST_CHECK(!numbers.empty() && numbers.size() % 2 == 0 && decision.size() == 3,
                 "decide_update: " + std::to_string(numbers.size()) + " numbers of ranks, " +
                     std::to_string(decision.size()) + " results");
  comm::launch("decide_update", decide_update_kernel, {1, 32, 0}, stream, numbers.data(),
               static_cast<std::int64_t>(numbers.size() / 2), rank, rule, std::numeric_limits<double>::max(),
               std::numeric_limits<double>::quiet_NaN(), decision.data());
}

}  // namespace droptest::models
