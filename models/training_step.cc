// SPDX-License-Identifier: Apache-2.0
#include "models/training_step.h"

#include <vector>

#include "models/gpt2/gpt2_messages.h"
#include "sim/error.h"

namespace droptest::models {

namespace {

/// Of one rank's micro-batches, or of all ranks'.
struct Targets {
  std::int64_t all = 0;
  std::int64_t each = 0;  ///< of every micro-batch; kDiffer where they differ
  static constexpr std::int64_t kDiffer = -1;

  void add(const Targets& other) {
    all += other.all;
    if (each != other.each) each = kDiffer;
  }
};

Targets count(std::span<const MicroBatch> micro_batches) {
  Targets targets{0, count_targets(micro_batches.front().targets)};
  for (const MicroBatch& batch : micro_batches) {
    const std::int64_t own = count_targets(batch.targets);
    targets.add({own, own});
  }
  return targets;
}

/// Ranks: all that are data parallel.
Targets count_over(comm::Communicator* group, const Targets& own) {
  if (group == nullptr) return own;
  std::vector<Targets> of_ranks(static_cast<std::size_t>(group->world_size()));
  static_assert(sizeof(Targets) == 2 * sizeof(std::int64_t));
  group->all_gather(comm::ConstTensor(std::span<const std::int64_t>(&own.all, 2)),
                    comm::Tensor(std::span<std::int64_t>(&of_ranks.front().all, 2 * of_ranks.size())),
                    std::vector<std::uint64_t>(of_ranks.size(), 2), Gpt2Messages::targets());
  Targets targets{0, own.each};
  for (const Targets& rank : of_ranks) targets.add(rank);
  return targets;
}

}  // namespace

StepResult TrainingStep::take(std::span<const MicroBatch> micro_batches, double learning_rate) {
  DROPTEST_CHECK(!micro_batches.empty(), "a step without micro-batches");
  const auto passes = static_cast<int>(micro_batches.size());
  const Targets targets = count_over(model_.data_group(), count(micro_batches));
  const bool alike = targets.each != Targets::kDiffer;
  model_.zero_gradients();
  for (const MicroBatch& batch : micro_batches) {
    const Follows follows = &batch == &micro_batches.back() ? Follows::kUpdate : Follows::kPass;
    if (alike) {  // the mean over all targets is the mean of the micro-batches' means
      model_.forward_backward(batch.tokens, batch.targets, batch.shape, 1.0 / passes, Gpt2::kOwnTargets, follows);
    } else {  // the mean over ranks of this is the sum by all targets
      model_.forward_backward(batch.tokens, batch.targets, batch.shape, model_.data_ranks(), targets.all, follows);
    }
  }
  UpdateRule rule{max_gradient_norm_, alike ? passes : 1.0 / model_.data_ranks()};
  rule.norm = norm_;
  const UpdateDecision decision = model_.update(learning_rate, rule);
  return {decision.loss, decision.gradient_norm, !decision.skips()};
}

}  // namespace droptest::models
