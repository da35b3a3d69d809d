// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/clock/virtual_clock.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "sim/error.h"

namespace droptest::comm {
namespace {

const Message kTimes{sim::TrafficClass::kControl, "virtual times"};

// A thread does not use up this time while it waits, or while other ranks use its core.
double system_thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

VirtualClock::VirtualClock(const Network& network, const TimeModel& model, int world_rank)
    : network_(network),
      model_((validate(model, network), model)),
      world_rank_(world_rank),
      straggler_(model_.compute_p99_over_p50) {}

double VirtualClock::thread_seconds() const {
  return model_.thread_seconds ? model_.thread_seconds() : system_thread_seconds();
}

void VirtualClock::compute(double seconds, std::uint64_t index) {
  const double taken = seconds * straggler_.factor(network_.seed, sim::Purpose::kComputeStraggler,
                                                   static_cast<std::uint64_t>(world_rank_), index);
  time_.seconds += taken;
  time_.compute_seconds += taken;
}

void VirtualClock::wait_for(const CallTiming& call, sim::TrafficClass of) {
  const double waited = call.end_seconds - time_.seconds;
  if (waited <= 0) return;
  const double idle = std::clamp(call.ready_seconds - time_.seconds, 0.0, waited);
  time_.idle_seconds += idle;
  time_.exposed_in(of) += waited - idle;
  time_.seconds = call.end_seconds;
}

void VirtualClock::begin_step(std::uint64_t step) {
  if (step_ == step) return;
  if (!step_) resumed_ = thread_seconds();  // time before the first step is preparation
  step_ = step;
  if (model_.compute_seconds) compute_share(1 - model_.later_share);
}

void VirtualClock::compute_share(double share) {
  if (!(share >= 0)) throw ConfigError("share of compute time: got " + std::to_string(share) + ", want at least 0");
  if (model_.compute_seconds && step_) compute(*model_.compute_seconds * share, *step_);
}

void VirtualClock::visit_state(sim::StateVisitor& visitor) { visit_values(visitor, time_, ports_, step_); }

VirtualClock::Pause::Pause(VirtualClock* clock) : clock_(clock) {
  if (clock_ == nullptr || clock_->pauses_++ > 0 || clock_->model_.compute_seconds || !clock_->step_) return;
  clock_->compute(clock_->thread_seconds() - clock_->resumed_, *clock_->step_);
}

VirtualClock::Pause::~Pause() {
  if (clock_ != nullptr && --clock_->pauses_ == 0) clock_->resumed_ = clock_->thread_seconds();
}

VirtualClock::Stop::Stop(VirtualClock* clock) : pause_(clock), clock_(clock) {
  if (clock_ == nullptr) return;
  ++clock_->stops_;
  before_ = clock_->time_;
  ports_before_ = clock_->ports_;
}

VirtualClock::Stop::~Stop() {
  if (clock_ == nullptr) return;
  --clock_->stops_;
  clock_->time_ = before_;
  clock_->ports_ = ports_before_;
}

Network with_deadlines(const Network& network, const TimeModel& model) {
  Network result = network;
  for (auto& of_class : result.classes) {
    if (!of_class) continue;
    for (HalfNetwork* half : {&of_class->reduce, &of_class->gather}) {
      half->deadline = model.deadline_seconds.has_value();
    }
    if (of_class->quorum) of_class->reduce.deadline = true;
  }
  return result;
}

VirtualTime collect_time(Communicator& group, const VirtualTime& mine) {
  std::vector<double> words = {mine.seconds,
                               mine.compute_seconds,
                               mine.network_seconds,
                               static_cast<double>(mine.packets),
                               static_cast<double>(mine.repeated),
                               static_cast<double>(mine.timeouts),
                               static_cast<double>(mine.late),
                               mine.idle_seconds};
  const std::size_t numbers = words.size();
  words.insert(words.end(), mine.exposed.begin(), mine.exposed.end());
  const auto ranks = static_cast<std::size_t>(group.world_size());
  std::vector<double> all(ranks * words.size());
  group.all_gather(ConstTensor(std::span<const double>(words)), Tensor(std::span(all)),
                   std::vector<std::uint64_t>(ranks, words.size()), kTimes);
  VirtualTime total;
  for (std::size_t r = 0; r < ranks; ++r) {
    const double* of_rank = all.data() + r * words.size();
    total.seconds = std::max(total.seconds, of_rank[0]);
    total.compute_seconds += of_rank[1] / static_cast<double>(ranks);
    total.network_seconds += of_rank[2] / static_cast<double>(ranks);
    total.packets += static_cast<std::uint64_t>(of_rank[3]);
    total.repeated += static_cast<std::uint64_t>(of_rank[4]);
    total.timeouts += static_cast<std::uint64_t>(of_rank[5]);
    total.late += static_cast<std::uint64_t>(of_rank[6]);
    total.idle_seconds += of_rank[7] / static_cast<double>(ranks);
    for (std::size_t c = 0; c < total.exposed.size(); ++c) {
      total.exposed[c] += of_rank[numbers + c] / static_cast<double>(ranks);
    }
  }
  return total;
}

}  // namespace droptest::comm
