// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/pipeline_traffic.h"

#include <limits>

#include "sim/error.h"

namespace droptest::models {
namespace {

/// The first ordinals, after those of training, of evaluations and of inputs that are sent past a stage. Evaluations
/// start again from the beginning when their ordinals are used up.
constexpr std::uint64_t kEvaluationOrdinals = PipelineTraffic::kMostTrainingOrdinals;
constexpr std::uint64_t kPastOrdinals = std::uint64_t{1} << 30U;

}  // namespace

PipelineTraffic::PipelineTraffic(comm::Communicator& group, const PipelineProgram& program) : group_(group) {
  using LinkOf = std::tuple<int, int, bool, bool>;  // source, destination, is forward, is sent past a stage
  std::map<LinkOf, std::uint64_t> numbers;
  std::map<Delivered, LinkOf> links;
  for (int stage = 0; stage < program.stages(); ++stage) {
    for (const Action::Kind kind : {Action::Kind::kForward, Action::Kind::kBackward}) {
      const Action action{stage, kind};
      for (const Delivery& delivery : program.deliveries(action)) {
        const int user = delivery.user.stage;
        if (program.rank_of(user) == program.rank_of(stage)) continue;
        const LinkOf link{program.rank_of(stage), program.rank_of(user), action.is_forward(), delivery.past >= 0};
        links[{user, action.is_forward(), delivery.past >= 0}] = link;
        ++numbers[link];
      }
    }
  }
  std::map<LinkOf, std::uint64_t> so_far;  // counts so far, in the order of the stages that need the messages
  for (const auto& [delivered, link] : links) positions_[delivered] = {so_far[link]++, numbers[link]};
}

void PipelineTraffic::begin_step(int micro_batches) {
  first_ordinal_ = 0;
  first_micro_batch_ = trained_;
  trained_ += static_cast<std::uint64_t>(micro_batches);
}

void PipelineTraffic::begin_evaluation() {
  first_ordinal_ = kEvaluationOrdinals;
  first_micro_batch_ = evaluated_++;
}

void PipelineTraffic::visit_state(StateVisitor& visitor) {
  visitor.number("micro-batches of training", trained_);
  visitor.number("evaluations", evaluated_);
}

comm::Message PipelineTraffic::message(const PipelineStep& step, int of_stage) {
  const bool forward = step.action.is_forward();
  const char* const result = forward ? ".output." : ".input_gradient.";
  const char* const input = forward ? ".input." : ".output_gradient.";
  name_ =
      "stage." + std::to_string(of_stage) + (step.is_past() ? input : result) + std::to_string(step.action.micro_batch);
  comm::Message message{forward ? sim::TrafficClass::kPpActivation : sim::TrafficClass::kPpGradient, name_, -1};
  const int user = of_stage + (forward ? 1 : -1);
  const LinkPosition at = positions_.at({user, forward, step.is_past()});
  std::uint64_t ordinal =
      (first_micro_batch_ + static_cast<std::uint64_t>(step.action.micro_batch)) * at.number + at.position;
  if (first_ordinal_ == kEvaluationOrdinals) ordinal %= kEvaluationOrdinals / 2;
  DROPTEST_CHECK(ordinal < kEvaluationOrdinals, "a pipeline ran out of ordinals for its messages");
  message.ordinal = first_ordinal_ + ordinal + (step.is_past() ? kPastOrdinals : 0);
  return message;
}

void PipelineTraffic::start_receive(const PipelineStep& step, const comm::Tensor& to, const comm::Tensor& substitute,
                                    LostElements* lost) {
  const Action& action = step.action;
  if (!action.is_forward()) finish_send(step);  // the gradients may share a buffer
  const int before = action.is_forward() ? action.stage - 1 : action.stage + 1;
  comm::Message about = message(step, before);
  about.substitute = substitute;
  about.lost = lost;
  receives_.insert_or_assign({{action.stage, action.is_forward(), action.micro_batch}, step.past},
                             group_.start_recv(to, step.peer, about));
}

void PipelineTraffic::start_send(const PipelineStep& step, const comm::Tensor& from) {
  const Action& action = step.action;
  sends_.insert_or_assign({{action.stage, action.is_forward(), step.slot}, step.past},
                          group_.start_send(from, step.peer, message(step, step.is_past() ? step.past : action.stage)));
}

void PipelineTraffic::finish_receive(const Action& action) {
  // The input of a stage that is sent past it fills the lost elements of the stage's result.
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
