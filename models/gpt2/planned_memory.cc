// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/planned_memory.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "comm/dry_communicator.h"
#include "models/gpt2/pass_memory.h"
#include "models/gpt2/stage_plan.h"
#include "models/ops/planner_ops.h"

namespace droptest::models {
namespace {

struct PlannedStage {
  StageRange range;
  Keep keep = Keep::kForBackward;
  SentPast sent_past{};
  std::uint64_t slots = 1;
};

std::vector<PlannedStage> stages_of(const Gpt2Config& config, const ModelPart& part, const SlotOptions& options) {
  if (part.plan == nullptr) {
    return {{StageRange::whole(config), Keep::kForBackward, {}, static_cast<std::uint64_t>(options.slots)}};
  }
  std::vector<PlannedStage> stages;
  for (const int stage : part.plan->stages_of(part.pipeline_rank)) {
    const auto s = static_cast<std::size_t>(stage);
    stages.push_back({part.plan->stages[s], part.plan->keep_of(stage), part.plan->sent_past_of(stage),
                      static_cast<std::uint64_t>(part.plan->program.slots[s])});
  }
  return stages;
}

PassUse planned(const Gpt2Config& config, const ModelPart& part, const OpsForm& form, const BatchShape& batch,
                const SlotOptions& options) {
  const std::vector<PlannedStage> stages = stages_of(config, part, options);
  PassUse use;
  for (const bool training : {true, false}) {
    std::vector<StagePlan> plans;
    std::vector<std::uint64_t> slots;
    for (const PlannedStage& stage : stages) {
      plans.emplace_back(config, stage.range, part.tensor_ranks, part.tensor_rank, form, batch,
                         training ? stage.keep : Keep::kNothing, stage.sent_past, options);
      slots.push_back(training ? stage.slots : 1);
      if (!training) continue;
      const StagePlan& plan = plans.back();
      use.largest_slot = std::max(use.largest_slot, plan.saved().bytes());
      use.slots += stage.slots;
      use.states += stage.slots * static_cast<std::uint64_t>(stage.range.count());
      use.stored += stage.slots * plan.stored_bytes();
      use.passing = std::max(use.passing, plan.passing_bytes());
    }
    use.memory = std::max(use.memory, PassMemory(plans, slots, training).bytes());
  }
  return use;
}

}  // namespace

PassUse pass_use(const Gpt2Config& config, const ModelPart& part, const OpsForm& form, const BatchShape& batch,
                 const SlotOptions& options) {
  validate(config, options, part.tensor_ranks);
  // An upper bound for all element types, in double: the sizes of a wrong spec may not fit into 64 bits.
  const double most = 8.0 * options.slots * static_cast<double>(batch.batch) * static_cast<double>(batch.length) *
                      (32.0 * config.layers * config.width + 32.0 * config.width + config.vocabulary);
  if (most > 0x1p62) return {.memory = std::uint64_t{1} << 63U};
  // Blocks are equal: from the third on, each adds as much as the previous one. With recomputation, the layout of
  // working memory depends on the number of blocks.
  constexpr int kDifferent = 3;
  if (part.plan != nullptr || config.layers <= kDifferent || !options.recompute.empty()) {
    return planned(config, part, form, batch, options);
  }
  Gpt2Config few = config;
  few.layers = kDifferent - 1;
  const PassUse before = planned(few, part, form, batch, options);
  few.layers = kDifferent;
  PassUse use = planned(few, part, form, batch, options);
  const auto more = static_cast<std::uint64_t>(config.layers - kDifferent);
  use.memory += more * (use.memory - before.memory);
  use.largest_slot += more * (use.largest_slot - before.largest_slot);
  use.states += more * (use.states - before.states);
  return use;
}

MemoryUse state_use(std::vector<Gpt2Tensor> tensors, const OpsForm& form, const ShardOptions& sharding, int data_ranks,
                    int data_rank, const OptimizerConfig& optimizer) {
  // The pieces of offloaded state are listed one by one; a machine has room for a list of this length.
  constexpr double kMostPieces = 1 << 24;
  ShardOptions options = sharding;
  double elems = 0;
  for (const Gpt2Tensor& tensor : tensors) elems += static_cast<double>(tensor.slice.local_elems());
  if (elems / static_cast<double>(options.offload_piece_elems) > kMostPieces) {
    options.offloads_values = options.offloads_moments = false;
  }
  std::vector<comm::DryCall> calls;
  comm::DryCommunicator alone(1, 0, calls);
  comm::DryCommunicator replicas(data_ranks, data_rank, calls);
  const std::unique_ptr<PlannerOps> ops = make_planner_ops(form, alone);
  ParameterStore store(std::move(tensors), *ops, {data_ranks > 1 ? &replicas : nullptr, options}, optimizer.moments());
  MemoryUse use = store.memory_use();
  use.optimizer = Optimizer(store, optimizer, *ops).memory_bytes();
  return use;
}

}  // namespace droptest::models
