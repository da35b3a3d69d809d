// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/pipeline_traffic.h"

namespace droptest::models {

void PipelineTraffic::begin_step(int micro_batches) {
  first_ordinal_ = next_ordinal_;
  next_ordinal_ += static_cast<std::uint64_t>(micro_batches) * static_cast<std::uint64_t>(stages_);
}

comm::Message PipelineTraffic::message(bool forward, int sending_stage, int micro_batch) {
  name_ = "stage." + std::to_string(sending_stage) + (forward ? ".output." : ".input_gradient.") +
          std::to_string(micro_batch);
  comm::Message message{forward ? sim::TrafficClass::kPpActivation : sim::TrafficClass::kPpGradient, name_, -1};
  message.ordinal = first_ordinal_ + static_cast<std::uint64_t>(micro_batch) * static_cast<std::uint64_t>(stages_) +
                    static_cast<std::uint64_t>(sending_stage);
  return message;
}

void PipelineTraffic::start_receive(const PipelineStep& step, const comm::Tensor& to) {
  const Action& action = step.action;
  if (!action.is_forward()) finish_send(step);  // the gradients may share a buffer
  const int sender = action.is_forward() ? action.stage - 1 : action.stage + 1;
  receives_.insert_or_assign(
      {action.stage, action.is_forward(), action.micro_batch},
      group_.start_recv(to, step.peer, message(action.is_forward(), sender, action.micro_batch)));
}

void PipelineTraffic::start_send(const PipelineStep& step, const comm::Tensor& from) {
  const Action& action = step.action;
  sends_.insert_or_assign(
      {action.stage, action.is_forward(), step.slot},
      group_.start_send(from, step.peer, message(action.is_forward(), action.stage, action.micro_batch)));
}

void PipelineTraffic::finish_receive(const Action& action) {
  const auto found = receives_.find({action.stage, action.is_forward(), action.micro_batch});
  if (found == receives_.end()) return;
  found->second.wait();
  receives_.erase(found);
}

void PipelineTraffic::finish_send(const PipelineStep& step) {
  const auto found = sends_.find({step.action.stage, step.action.is_forward(), step.slot});
  if (found == sends_.end()) return;
  found->second.wait();
  sends_.erase(found);
}

void PipelineTraffic::finish() {
  for (auto& [key, work] : sends_) work.wait();
  sends_.clear();
}

void PipelineTraffic::send_evaluated(int stage, const comm::Tensor& from, int to) {
  group_.start_send(from, to, message(true, stage, 0)).wait();
}

void PipelineTraffic::receive_evaluated(int stage, const comm::Tensor& to, int from) {
  group_.start_recv(to, from, message(true, stage - 1, 0)).wait();
}

}  // namespace droptest::models
