// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/rank_agreement.h"

#include <span>
#include <vector>

#include "models/kernels/update_decision.h"

namespace droptest::experiments {

double agree_on_mean(double value, comm::Communicator& group, std::string_view name) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  std::vector<double> values(ranks);
  const std::vector<std::uint64_t> counts(ranks, 1);
  group.all_gather(comm::ConstTensor(std::span<const double>(&value, 1)), comm::Tensor(std::span<double>(values)),
                   counts, {sim::TrafficClass::kControl, name, -1});
  return models::mean_of_ranks(values);
}

}  // namespace droptest::experiments
