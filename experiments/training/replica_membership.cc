// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/replica_membership.h"

#include <array>
#include <span>
#include <utility>

namespace droptest::experiments {

ReplicaMembership::ReplicaMembership(const RunConfig& config, ReplicaAbsences& absences, TrainingModel& model,
                                     comm::LossyCommunicator& network, std::function<void()> came_back)
    : config_(config),
      absences_(absences),
      model_(model),
      network_(network),
      came_back_(std::move(came_back)),
      now_(&absences.at(0)) {}

void ReplicaMembership::resume(std::uint64_t step) {
  now_ = &absences_.at(step);
  if (!now_->absent.empty()) absences_.adopt(*now_, model_);
}

void ReplicaMembership::begin_step(std::uint64_t step, MetricsLine& line) {
  const Attendance& next = absences_.at(step);
  if (&next != now_) {
    const auto stop = network_.stop_clock();
    const bool returns = !now_->takes_part && next.takes_part;
    absences_.change(*now_, next, model_);
    now_ = &next;
    if (returns) came_back_();
  }
  if (now_->replicas != config_.full_data.value_or(config_.parallel.data)) line.replicas = now_->replicas;
}

void ReplicaMembership::share(models::StepResult& result) {
  if (now_->absent.empty()) return;
  const auto stop = network_.stop_clock();
  std::array<double, 4> numbers = {result.loss, result.gradient_norm, result.updated ? 1.0 : 0.0, result.loss_scale};
  network_.broadcast(comm::Tensor(std::span<double>(numbers)), 0, {sim::TrafficClass::kControl, "result of a step"});
  result = {numbers[0], numbers[1], numbers[2] != 0, numbers[3]};
  if (!now_->takes_part) model_.follow(result);
}

}  // namespace droptest::experiments
