// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/rank_groups.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace droptest::experiments {

using comm::ParallelDimension;

RankGroups::RankGroups(const RunConfig& config, std::shared_ptr<const models::PipelinePlan> plan,
                       comm::Communicator& world)
    : config_(config),
      plan_(std::move(plan)),
      groups_(config.parallel, world),
      alone_(groups_.group(ParallelDimension::kTensor) == nullptr ? world.subgroup(std::array{world.rank()}) : nullptr),
      tensor_(alone_ == nullptr ? *groups_.group(ParallelDimension::kTensor) : *alone_) {}

comm::Communicator* RankGroups::pipeline() const {
  return config_.parallel.pipeline == 1 ? nullptr : groups_.group(ParallelDimension::kPipeline);
}

models::ModelRanks RankGroups::model_ranks() {
  const comm::ParallelLayout& layout = config_.parallel;
  // Distances count the ranks that decide about an update; a worker decides about its own.
  comm::ParallelLayout deciding = layout;
  if (config_.outer.is_on()) deciding.data = 1;
  models::ModelRanks ranks;
  ranks.pipeline.group = pipeline();
  ranks.pipeline.stride = deciding.stride(ParallelDimension::kPipeline);
  ranks.pipeline.plan = plan_;
  if (config_.outer.is_on()) {
    std::vector<int> members =
        layout.ranks_along({ParallelDimension::kPipeline, ParallelDimension::kSequence, ParallelDimension::kTensor},
                           groups_.coordinates());
    std::ranges::sort(members);
    worker_ = groups_.world().subgroup(members);
    ranks.data = {nullptr, config_.sharding};
    if (worker_->world_size() > 1) ranks.all = worker_.get();
    return ranks;
  }
  ranks.data = {groups_.gradient_group(), config_.sharding};
  ranks.all = &groups_.world();
  ranks.data_stride = layout.stride(ParallelDimension::kData);
  ranks.sequence = {groups_.group(ParallelDimension::kSequence), layout.stride(ParallelDimension::kSequence)};
  return ranks;
}

}  // namespace droptest::experiments
