// SPDX-License-Identifier: Apache-2.0
// The methods of Gpt2 that pass activations and gradients from stage to stage.
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "models/gpt2/gpt2.h"
#include "models/gpt2/gpt2_messages.h"
#include "models/phase_times.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// The tensor that a delivery sends, in the buffers of the action.
comm::Tensor source_of(const Action& action, int past, StageBuffers& b) {
  const bool is_input = past == action.stage;
  if (action.is_forward()) return is_input ? Stage::input(b) : Stage::output(b);
  return is_input ? b.passed_gradient : Stage::grad_input(b);
}

/// The tensor that a delivery sets, in the buffers of its user.
comm::Tensor place_of(const Action& user, bool is_past, StageBuffers& b) {
  if (user.is_forward()) return is_past ? b.passed_input : Stage::input(b);
  return is_past ? b.passed_gradient : Stage::grad_output(b);
}

comm::Tensor on_stream(const comm::Tensor& tensor, comm::Stream* stream) { return {tensor.type, tensor.bytes, stream}; }

/// The mean over all targets, from each rank's mean and number of targets. Ranks: all of the group.
double mean_over(comm::Communicator* group, double mean, std::int64_t targets) {
  if (group == nullptr) return mean;
  const std::array<double, 2> own = {mean, static_cast<double>(targets)};
  std::vector<double> all(2 * static_cast<std::size_t>(group->world_size()));
  group->all_gather(comm::ConstTensor(std::span<const double>(own)), comm::Tensor(std::span<double>(all)),
                    std::vector<std::uint64_t>(all.size() / 2, 2), Gpt2Messages::evaluation_losses());
  double sum = 0;
  double count = 0;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    sum += all[i] * all[i + 1];
    count += all[i + 1];
  }
  return sum / std::max(1.0, count);
}

}  // namespace

double Gpt2::evaluate(const MicroBatch& batch, EvaluationDetail detail) {
  check_batch(batch, config_);
  check_embedding_is_spread();
  Prepared& evaluation = prepared(batch.shape, Keep::kNothing);
  if (traffic_) traffic_->begin_evaluation();
  const auto tokens = cut_.own(batch.tokens, batch.shape, own_tokens_);
  const auto targets = cut_.own(batch.targets, batch.shape, own_targets_);
  double loss = 0;
  detail_.clear();
  if (detail == EvaluationDetail::kLogits) {
    detail_.assign(static_cast<std::size_t>(batch.shape.batch * config_.outputs()), 0);
  }
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    OwnStage& own = *stages_[i];
    StageBuffers& b = evaluation.slots[i].front();
    take_sequences(batch, b);
    if (traffic_) take_evaluated(own.number, b);
    own.stage.forward(b, Keep::kNothing, tokens, targets);
    if (own.range.has_head()) {
      const std::int64_t count = count_targets(targets);
      own.stage.evaluate_head(b, static_cast<double>(std::max<std::int64_t>(1, count)), targets,
                              detail_visitor(detail, b.extents, targets));
      loss = mean_over(ranks_.sequence.group, ops_->numbers()[Number::kEvaluation], count);
    } else {
      give_evaluated(own.number, b);
    }
  }
  return loss;
}

LogitVisitor Gpt2::detail_visitor(EvaluationDetail detail, const StageExtents& extents,
                                  std::span<const std::int32_t> targets) {
  if (detail == EvaluationDetail::kLoss) return {};
  const TokenRange own = extents.outputs;
  if (detail == EvaluationDetail::kMargins) {
    return [this, own, targets](std::int64_t row, std::span<const double> logits) {
      constexpr double kNone = -std::numeric_limits<double>::infinity();
      const std::int64_t target = targets[static_cast<std::size_t>(row)] - own.first;
      detail_.push_back(logits.empty() ? kNone : *std::max_element(logits.begin(), logits.end()));
      detail_.push_back(target >= 0 && target < own.count ? logits[static_cast<std::size_t>(target)] : kNone);
    };
  }
  return [this, own, length = extents.batch.length](std::int64_t row, std::span<const double> logits) {
    const std::int64_t sequence = row / length;
    std::copy(logits.begin(), logits.end(), detail_.begin() + sequence * config_.outputs() + own.first);
  };
}

std::optional<std::size_t> Gpt2::own_stage(int stage) const {
  const auto found =
      std::find_if(stages_.begin(), stages_.end(), [&](const auto& own) { return own->number == stage; });
  if (found == stages_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - stages_.begin());
}

// An evaluation runs a program of one micro-batch, in which each rank computes its stages in order.
void Gpt2::take_evaluated(int stage, StageBuffers& to) {
  const Action action{stage, Action::Kind::kForward};
  const PipelineProgram& program = ranks_.pipeline.plan->program;
  const auto receive = [&](int from, int past) {
    if (from < 0 || own_stage(from)) return;
    const PipelineStep step{PipelineStep::Kind::kReceive, action, program.rank_of(from), 0, past};
    start_receive(step, to);
  };
  if (program.has_substitute(action)) receive(std::max(stage - 2, 0), stage - 1);
  receive(stage - 1, -1);
  traffic_->finish_receive(action);
}

void Gpt2::give_evaluated(int stage, StageBuffers& from) {
  const Action action{stage, Action::Kind::kForward};
  const PipelineProgram& program = ranks_.pipeline.plan->program;
  PipelineStep step{PipelineStep::Kind::kSend, action};
  for (const Delivery& delivery : program.deliveries(action)) {
    const comm::Tensor data = source_of(action, delivery.past, from);
    if (const auto own = own_stage(delivery.user.stage)) {
      ops_->convert(data, place_of(delivery.user, delivery.past >= 0, evaluation_->slots[*own].front()));
      continue;
    }
    step.peer = program.rank_of(delivery.user.stage);
    step.past = delivery.past;
    traffic_->start_send(step, data);
  }
  if (traffic_) traffic_->finish_send(step);
}

void Gpt2::begin_steps(int micro_batches, const BatchShape& shape) {
  check_embedding_is_spread();
  prepared(shape, Keep::kForBackward);
  --slots_taken_;  // no pass took this slot
  if (traffic_) traffic_->begin_step(micro_batches);
}

void Gpt2::take(const PipelineStep& step, const PassInput& input) {
  switch (step.kind) {
    case PipelineStep::Kind::kReceive:
      return start_receive(step, buffers({step.action.stage, step.slot}));
    case PipelineStep::Kind::kSend:
      return traffic_->start_send(step, source_of(step.action, step.past, buffers({step.action.stage, step.slot})));
    case PipelineStep::Kind::kCompute:
      return compute(step, input);
  }
}

void Gpt2::start_receive(const PipelineStep& step, StageBuffers& to) {
  const bool takes_past = !step.is_past() && ranks_.pipeline.plan->program.has_substitute(step.action);
  const bool stops = step.action.is_forward() && !step.is_past() && traffic_->stops_lost_gradients();
  if (step.action.is_forward() && !step.is_past()) to.lost_input.clear();
  traffic_->start_receive(step, place_of(step.action, step.is_past(), to),
                          takes_past ? place_of(step.action, true, to) : comm::Tensor{},
                          stops ? &to.lost_input : nullptr);
}

void Gpt2::compute(const PipelineStep& step, const PassInput& input) {
  const Action& action = step.action;
  const StageSlot at{action.stage, step.slot};
  if (traffic_ && action.kind != Action::Kind::kWeightGradient) {
    traffic_->finish_receive(action);
    traffic_->finish_send(step);
  }
  if (action.is_forward()) {
    forward(at, input.batch);
  } else {
    backward(at, action.kind, input.scale, input.mean_over, input.follows);
    if (action.kind != Action::Kind::kWeightGradient) stop_lost_gradients(buffers(at));
  }
  pass_on(action);
}

void Gpt2::stop_lost_gradients(StageBuffers& b) { ops_->zero_ranges(Stage::grad_input(b), b.lost_input); }

void Gpt2::pass_on(const Action& action) {
  if (ranks_.pipeline.plan == nullptr) return;
  const PipelineProgram& program = ranks_.pipeline.plan->program;
  const auto slot_of = [&](int stage) {
    return program.slot_of[static_cast<std::size_t>(stage)][static_cast<std::size_t>(action.micro_batch)];
  };
  for (const Delivery& delivery : program.deliveries(action)) {
    const int to = delivery.user.stage;
    if (!own_stage(to)) continue;
    // The gradients of a slot may share a buffer, which may still be being sent for an earlier micro-batch.
    if (traffic_ && !action.is_forward()) {
      traffic_->finish_send({PipelineStep::Kind::kCompute, delivery.user, -1, slot_of(to)});
    }
    ops_->convert(source_of(action, delivery.past, buffers({action.stage, slot_of(action.stage)})),
                  place_of(delivery.user, delivery.past >= 0, buffers({to, slot_of(to)})));
  }
}

void Gpt2::finish_backward() {
  if (traffic_) traffic_->finish();
  if (is_whole()) return;
  if (ends_) {
    const PhaseScope scope(ops_->times(), Phase::kReductions);
    const TiedEmbedding tied = tied_embedding();
    comm::Stream* const traffic = ops_->begin_traffic();
    const comm::Tensor gradient = on_stream(store_.gradients_of(tied.tensor), traffic);
    ends_->group->reduce_scatter(gradient, tied.own_part(gradient), tied.counts, comm::ReduceOp::kSum,
                                 Gpt2Messages::embedding_gradient());
    ops_->end_traffic();
  }
  store_.on_gradient_ready(kOutsideOfBlocks);
}

void Gpt2::spread_embedding() {
  if (!ends_) return;
  const PhaseScope scope(ops_->times(), Phase::kReductions);
  const TiedEmbedding tied = tied_embedding();
  store_.acquire(kOutsideOfBlocks);
  comm::Stream* const traffic = ops_->begin_traffic();
  const comm::Tensor values = on_stream(store_.values_of(tied.tensor), traffic);
  ends_->group->all_gather(tied.own_part(values), values, tied.counts, Gpt2Messages::embedding_values());
  ops_->end_traffic();
  if (!tied.is_owner) store_.round_value(tied.tensor);
  store_.release(kOutsideOfBlocks);
  embedding_is_spread_ = true;
}

void Gpt2::check_embedding_is_spread() const {
  DROPTEST_CHECK(embedding_is_spread_,
                 "a step or an evaluation after an update without spread_embedding(), which gives the first stage of a "
                 "pipeline the new values of the tied embedding");
}

Gpt2::TiedEmbedding Gpt2::tied_embedding() const {
  TiedEmbedding tied;
  tied.tensor = store_.table().number_of(kTiedTensor);
  const Gpt2Tensor& tensor = store_.tensors()[tied.tensor];
  tied.is_owner = !tensor.is_copy;
  tied.counts.assign(2, 0);
  tied.counts[static_cast<std::size_t>(ends_->owner)] = store_.table().ranges[tied.tensor].count - padding_of(tensor);
  return tied;
}

comm::Tensor Gpt2::TiedEmbedding::own_part(const comm::Tensor& all) const {
  return is_owner ? all : elements(all, 0, 0);
}

}  // namespace droptest::models
