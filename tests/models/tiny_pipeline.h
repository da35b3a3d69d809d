// SPDX-License-Identifier: Apache-2.0
// The smallest GPT-2 on the ranks of a pipeline, which runs the steps of its program one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "models/ops/host_ops.h"
#include "tests/models/formula_model.h"

namespace droptest::models {

/// A schedule of three ranks with warm-up, steady state and drain: 1F1B with six micro-batches.
inline PipelineSchedule failing_schedule() { return make_schedule(ScheduleKind::kOneForwardOneBackward, 3, 1, 6); }

/// A model with one head and width 8, in doubles; micro-batches have two tokens. Weights and tokens are formula
/// numbers. Owner: one rank.
class TinyPipeline {
 public:
  /// A model with `layers` blocks, equally many in each stage. `world` is borrowed. Ranks: those of the schedule.
  /// `times` measures the phases; may be null.
  TinyPipeline(const PipelineSchedule& schedule, int layers, comm::Communicator& world, const SentPast& sent_past = {},
               PhaseTimes* times = nullptr)
      : config_{layers, 8, 1, kLength, 11},
        world_(world),
        alone_(world.split(world.rank(), 0)),
        plan_(plan(schedule, sent_past)) {
    ModelRanks ranks;
    if (world.world_size() > 1) ranks.pipeline.group = &world;
    ranks.pipeline.plan = plan_;
    ranks.all = &world;
    model_ = std::make_unique<Gpt2>(config_, make_host_ops({.type = comm::ElementType::kFloat64}, *alone_, times),
                                    OptimizerConfig{.rule = OptimizerConfig::Rule::kSgd}, SlotOptions{}, ranks);
    set_formula_weights<double>(config_, model_->parameters<double>(), *alone_);
    model_->upload_values();
  }

  const std::vector<PipelineStep>& steps() const {
    return plan_->program.ranks[static_cast<std::size_t>(world_.rank())];
  }
  /// The number of places in a training step: one for each of steps(), then finish_backward() and the update.
  int places() const { return static_cast<int>(steps().size()) + 2; }

  /// Runs the passes of a training step. Calls before(i) before place i.
  void passes(const std::function<void(int)>& before = {}) {
    const auto micro_batches = static_cast<int>(plan_->program.slot_of.front().size());
    const std::vector<std::int32_t> tokens = formula_tokens(0, micro_batches * kLength, config_.vocabulary);
    const std::vector<std::int32_t> targets = formula_tokens(1, micro_batches * kLength, config_.vocabulary);
    std::map<int, std::size_t> last_of_stage;
    for (std::size_t i = 0; i < steps().size(); ++i) {
      if (steps()[i].kind == PipelineStep::Kind::kCompute) last_of_stage[steps()[i].action.stage] = i;
    }
    model_->zero_gradients();
    model_->begin_steps(micro_batches, {1, kLength});
    for (std::size_t i = 0; i < steps().size(); ++i) {
      if (before) before(static_cast<int>(i));
      const auto at = static_cast<std::size_t>(steps()[i].action.micro_batch * kLength);
      PassInput input{{std::span(tokens).subspan(at, kLength), std::span(targets).subspan(at, kLength), {1, kLength}},
                      1.0 / micro_batches,
                      Gpt2::kOwnTargets};
      if (last_of_stage[steps()[i].action.stage] == i) input.follows = Follows::kUpdate;
      model_->take(steps()[i], input);
    }
    if (before) before(places() - 2);
    model_->finish_backward();
  }
  /// passes(), the update, and the new values of the tied embedding.
  void step(const std::function<void(int)>& before) {
    passes(before);
    before(places() - 1);
    update();
    spread_embedding();
  }
  void update() { model_->update(0.01, {.max_gradient_norm = 0.5}); }
  void spread_embedding() { model_->spread_embedding(); }
  /// The loss of one sequence.
  double evaluate() {
    const std::vector<std::int32_t> tokens = formula_tokens(0, kLength, config_.vocabulary);
    return model_->evaluate(tokens, tokens, {1, kLength});
  }

  /// Moves the weights in the direction of for_each_along().
  void move(double by) {
    for_each_along<double>(
        config_, model_->parameters<double>(), *alone_,
        [by](Parameter<double>& parameter, std::uint64_t at, double d) { parameter.value[at] += by * d; });
    model_->upload_values();
  }
  /// This rank's part of the slope of the loss in the direction of for_each_along().
  double slope() {
    model_->download(Gpt2::Fields::kValuesAndGradients);
    double slope = 0;
    for_each_along<double>(
        config_, model_->parameters<double>(), *alone_,
        [&](Parameter<double>& parameter, std::uint64_t at, double d) { slope += parameter.gradient[at] * d; });
    return slope;
  }

  /// The sum of the losses of passes(); 0 on a rank without the head.
  double losses() { return model_->step_sums().losses; }
  /// Copies the gradients of the parameters that this rank updates into those of the whole model.
  void add_gradients_to(Tensors& whole) {
    model_->download(Gpt2::Fields::kValuesAndGradients);
    std::vector<Parameter<double>> updated;
    for (std::size_t i = 0; i < model_->tensors().size(); ++i) {
      if (!model_->tensors()[i].is_copy) updated.push_back(model_->parameters<double>()[i]);
    }
    add_to_whole<double>(config_, updated, *alone_, &Parameter<double>::gradient, whole);
  }

 private:
  static constexpr int kLength = 2;

  std::shared_ptr<const PipelinePlan> plan(const PipelineSchedule& schedule, const SentPast& sent_past) const {
    auto plan = std::make_shared<PipelinePlan>();
    plan->program = make_program(schedule, sent_past);
    const int each = config_.layers / schedule.stages();
    for (int s = 0; s < schedule.stages(); ++s) plan->stages.push_back({s * each, (s + 1) * each, config_.layers});
    return plan;
  }

  Gpt2Config config_;
  comm::Communicator& world_;
  std::unique_ptr<comm::Communicator> alone_;
  std::shared_ptr<const PipelinePlan> plan_;  ///< shared with the model
  std::unique_ptr<Gpt2> model_;
};

}  // namespace droptest::models
