// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/evaluation.h"

#include <algorithm>
#include <span>
#include <vector>

namespace droptest::experiments {

double mean_loss(TrainingModel& model, const EvaluationBatches& batches, const comm::ParallelGroups* groups,
                 const std::function<void()>& evaluated) {
  const auto group = [groups](comm::ParallelDimension dimension) {
    return groups == nullptr ? nullptr : groups->group(dimension);
  };
  comm::Communicator* const replicas = group(comm::ParallelDimension::kData);
  const std::uint64_t count = batches.batches();
  const std::uint64_t ranks = replicas == nullptr ? 1 : static_cast<std::uint64_t>(replicas->world_size());
  const std::uint64_t own = replicas == nullptr ? 0 : static_cast<std::uint64_t>(replicas->rank());
  const std::uint64_t turns = (count + ranks - 1) / ranks;
  std::vector<double> sums;  // of each turn's batch
  for (std::uint64_t turn = 0; turn < turns; ++turn) {
    // All replicas take part in every turn, since one may need the others' parameters.
    const std::uint64_t index = turn * ranks + own;
    const Batch batch = batches.batch(std::min(index, count - 1));
    const double loss = model.evaluate(batch);
    evaluated();
    sums.push_back(index < count ? loss * static_cast<double>(batch.targets.size()) : 0);
  }
  if (const auto plan = model.pipeline()) {
    comm::Communicator& pipeline = *group(comm::ParallelDimension::kPipeline);
    pipeline.broadcast(comm::Tensor(std::span<double>(sums)), plan->rank_of(static_cast<int>(plan->stages.size()) - 1),
                       {sim::TrafficClass::kControl, "evaluation_losses", -1});
  }
  std::vector<double> of_all = sums;
  if (replicas != nullptr) {
    of_all.resize(sums.size() * ranks);
    replicas->all_gather(comm::ConstTensor(std::span<const double>(sums)), comm::Tensor(std::span<double>(of_all)),
                         std::vector<std::uint64_t>(ranks, turns),
                         {sim::TrafficClass::kControl, "evaluation_losses", -1});
  }
  double sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) sum += of_all[i % ranks * turns + i / ranks];
  return sum / static_cast<double>(batches.count_targets());
}

}  // namespace droptest::experiments
