// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/pipeline_traffic.h"

#include <limits>

#include "sim/error.h"

namespace droptest::models {
namespace {

/// Where parts of a link's places begin, behind those of training: of evaluations, and of inputs sent past a stage.
constexpr std::uint64_t kEvaluationOrdinals = PipelineTraffic::kMostTrainingOrdinals;
constexpr std::uint64_t kPastOrdinals = std::uint64_t{1} << 30U;

}  // namespace

void PipelineTraffic::begin_step(int micro_batches) {
  first_ordinal_ = next_ordinal_;
  next_ordinal_ += static_cast<std::uint64_t>(micro_batches) * static_cast<std::uint64_t>(stages_);
  DROPTEST_CHECK(next_ordinal_ <= kEvaluationOrdinals, "a pipeline ran out of places for its messages");
}

void PipelineTraffic::begin_evaluation() {
  first_ordinal_ = kEvaluationOrdinals + evaluated_;
  evaluated_ = (evaluated_ + static_cast<std::uint64_t>(stages_)) % (kEvaluationOrdinals / 2);
}

void PipelineTraffic::visit_state(StateVisitor& visitor) {
  visitor.number("messages of training", next_ordinal_);
  visitor.number("messages of evaluations", evaluated_);
}

comm::Message PipelineTraffic::message(const PipelineStep& step, int of_stage) {
  const bool forward = step.action.is_forward();
  const char* const result = forward ? ".output." : ".input_gradient.";
  const char* const input = forward ? ".input." : ".output_gradient.";
  name_ =
      "stage." + std::to_string(of_stage) + (step.is_past() ? input : result) + std::to_string(step.action.micro_batch);
  comm::Message message{forward ? sim::TrafficClass::kPpActivation : sim::TrafficClass::kPpGradient, name_, -1};
  message.ordinal = first_ordinal_ +
                    static_cast<std::uint64_t>(step.action.micro_batch) * static_cast<std::uint64_t>(stages_) +
                    static_cast<std::uint64_t>(of_stage) + (step.is_past() ? kPastOrdinals : 0);
  return message;
}

void PipelineTraffic::start_receive(const PipelineStep& step, const comm::Tensor& to, const comm::Tensor& substitute) {
  const Action& action = step.action;
  if (!action.is_forward()) finish_send(step);  // the gradients may share a buffer
  const int before = action.is_forward() ? action.stage - 1 : action.stage + 1;
  comm::Message about = message(step, before);
  about.substitute = substitute;
  receives_.insert_or_assign({{action.stage, action.is_forward(), action.micro_batch}, step.past},
                             group_.start_recv(to, step.peer, about));
}

void PipelineTraffic::start_send(const PipelineStep& step, const comm::Tensor& from) {
  const Action& action = step.action;
  sends_.insert_or_assign({{action.stage, action.is_forward(), step.slot}, step.past},
                          group_.start_send(from, step.peer, message(step, step.is_past() ? step.past : action.stage)));
}

void PipelineTraffic::finish_receive(const Action& action) {
  // The input of a stage, sent past it, fills the holes of its result.
  finish(receives_, {action.stage, action.is_forward(), action.micro_batch});
}

void PipelineTraffic::finish_send(const PipelineStep& step) {
  finish(sends_, {step.action.stage, step.action.is_forward(), step.slot});
}

void PipelineTraffic::finish(Works& works, const Place& of) {
  auto work = works.lower_bound({of, std::numeric_limits<int>::max()});
  while (work != works.end() && work->first.first == of) {
    work->second.wait();
    work = works.erase(work);
  }
}

void PipelineTraffic::finish() {
  for (auto& [key, work] : sends_) work.wait();
  sends_.clear();
}

}  // namespace droptest::models
