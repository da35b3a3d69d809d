// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/rank_agreement.h"

#include <span>
#include <vector>

namespace droptest::experiments {

double agree_on_mean(double value, comm::Communicator& group, std::string_view name) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  std::vector<double> values(ranks);
  const std::vector<std::uint64_t> counts(ranks, 1);
  group.all_gather(comm::ConstTensor(std::span<const double>(&value, 1)), comm::Tensor(std::span<double>(values)),
                   counts, {sim::TrafficClass::kControl, name, -1});
  // Differences to the first value sum to exactly zero where all are equal, which a plain mean of three would not.
  double difference = 0;
  for (const double v : values) difference += v - values.front();
  return values.front() + difference / static_cast<double>(ranks);
}

}  // namespace droptest::experiments
