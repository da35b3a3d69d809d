// SPDX-License-Identifier: Apache-2.0
#include "models/training_step.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "models/gpt2/gpt2_messages.h"
#include "sim/error.h"

namespace droptest::models {

namespace {

/// The targets of one rank's micro-batches, or of all ranks'.
struct Targets {
  double all = 0;   ///< number of targets, or the sum of the weights of their classes
  double each = 0;  ///< targets of every micro-batch; kDiffer if they differ
  static constexpr double kDiffer = -1;

  void add(const Targets& other) {
    all += other.all;
    if (each != other.each) each = kDiffer;
  }
};

Targets count(Gpt2& model, std::span<const MicroBatch> micro_batches) {
  Targets targets{0, model.weigh_own_targets(micro_batches.front())};
  for (const MicroBatch& batch : micro_batches) {
    const double own = model.weigh_own_targets(batch);
    targets.add({own, own});
  }
  return targets;
}

/// Sums the targets over ranks. Ranks: all data-parallel ranks.
Targets count_over(comm::Communicator* group, const Targets& own) {
  if (group == nullptr) return own;
  std::vector<Targets> of_ranks(static_cast<std::size_t>(group->world_size()));
  static_assert(sizeof(Targets) == 2 * sizeof(double));
  group->all_gather(comm::ConstTensor(std::span<const double>(&own.all, 2)),
                    comm::Tensor(std::span<double>(&of_ranks.front().all, 2 * of_ranks.size())),
                    std::vector<std::uint64_t>(of_ranks.size(), 2), Gpt2Messages::targets());
  Targets targets{0, own.each};
  for (const Targets& rank : of_ranks) targets.add(rank);
  return targets;
}

}  // namespace

StepResult TrainingStep::take(std::span<const MicroBatch> micro_batches, double learning_rate,
                              UpdateRule::Flags flags) {
  DROPTEST_CHECK(!micro_batches.empty(), "a step without micro-batches");
  const auto passes = static_cast<int>(micro_batches.size());
  const double loss_scale = scaler_.scale();
  const Targets targets = count_over(model_.data_group(), count(model_, micro_batches));
  const bool alike = targets.each != Targets::kDiffer;
  const std::vector<PipelineStep>& steps = steps_for(passes);
  std::map<int, std::size_t> last_of_stage;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind == PipelineStep::Kind::kCompute) last_of_stage[steps[i].action.stage] = i;
  }
  model_.zero_gradients();
  model_.begin_steps(passes, micro_batches.front().shape);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Action& action = steps[i].action;
    PassInput input{micro_batches[static_cast<std::size_t>(action.micro_batch)], 1.0 / passes, Gpt2::kOwnTargets};
    if (!alike) {  // the mean of this over ranks is the sum divided by all targets
      input.scale = model_.data_ranks();
      input.mean_over = targets.all;
    }
    input.scale *= loss_scale;
    if (last_of_stage[action.stage] == i) input.follows = Follows::kUpdate;
    model_.take(steps[i], input);
    if (computed_ && steps[i].kind == PipelineStep::Kind::kCompute) computed_(action);
  }
  model_.finish_backward();
  UpdateRule rule{max_gradient_norm_, alike ? passes : 1.0 / model_.data_ranks()};
  rule.norm = norm_;
  rule.loss_scale = loss_scale;
  rule.flags = flags;
  const UpdateDecision decision = model_.update(learning_rate, rule);
  take_scale(!decision.skips());
  return {decision.loss, decision.gradient_norm, !decision.skips(), loss_scale};
}

const std::vector<PipelineStep>& TrainingStep::steps_for(int micro_batches) {
  const PipelineParallel& pipeline = model_.pipeline();
  if (pipeline.plan != nullptr) {
    const PipelineProgram& program = pipeline.plan->program;
    DROPTEST_CHECK(static_cast<int>(program.slot_of.front().size()) == micro_batches,
                   "a step of " + std::to_string(micro_batches) + " micro-batches for a program of " +
                       std::to_string(program.slot_of.front().size()));
    return program.ranks[static_cast<std::size_t>(pipeline.rank())];
  }
  if (alone_.slot_of.empty() || static_cast<int>(alone_.slot_of.front().size()) != micro_batches) {
    alone_ = make_program(make_schedule(ScheduleKind::kOneForwardOneBackward, 1, 1, micro_batches));
  }
  return alone_.ranks.front();
}

}  // namespace droptest::models
