// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/started_lossy_call.h"

#include <algorithm>
#include <exception>
#include <span>
#include <tuple>
#include <utility>

#include "comm/device/stream_turns.h"
#include "comm/lossy/clock/virtual_clock.h"
#include "comm/lossy/rank_state.h"

namespace droptest::comm {

StartedLossyCall::StartedLossyCall(LossyCommunicator& group, const CallArguments& arguments)
    : group_(group), arguments_(arguments), start_(group.start_of(arguments_.get())), call_(group, arguments_.get()) {
  group_.state_->started.push_back(this);
}

StartedLossyCall::~StartedLossyCall() {
  try {
    await_parts();
  } catch (...) {
    // The group has failed; its next call throws the reason.
  }
  std::erase(group_.state_->started, this);
}

void StartedLossyCall::start() {
  const CallArguments& call = arguments_.get();
  if (call.operation == Operation::kSend) {
    play();  // its receiver may wait for the time of departure
    begin_send(call_.outgoing());
    if (call_.is_sampled()) begin_send(call.input);
  } else if (receives()) {
    // The time of departure comes ahead of the data, whether or not both have one channel.
    if (!group_.posts_ahead(call)) return;
    if (start_) begin_departure();
    post_data();
  } else if (!group_.runs_ahead(call)) {
    const bool is_passed = &group_.channel_of_queue(call) != &group_.inner_;
    in_queue_ = group_.state_->queue.start([this] { run_in_queue(); },
                                           is_passed ? QueuedCalls::Others::kMayPass : QueuedCalls::Others::kQueueUp);
  } else if (stream_of(call) != nullptr) {
    call_.run(group_.inner_, call_.scratch());
    call_.release_scratch();
  } else {
    parts_.push_back(group_.lane_->start([this] { call_.run(*group_.lane_channel_, group_.lane_scratch_); }));
  }
}

void StartedLossyCall::post_data() {
  is_posted_ = true;
  call_.before_receipt();
  begin_recv(arguments_.get().output);
  if (call_.is_sampled()) begin_recv(call_.exact());
}

void StartedLossyCall::begin_departure() {
  CallArguments call;
  call.operation = arguments().operation;
  call.peer = arguments().peer;
  call.message = GroupTimeline::message_of_departures();
  if (receives()) {
    call.output = Tensor(std::span<double>(departure_));
    departure_part_ = group_.timeline_->channel().begin(call);
  } else {
    call.input = ConstTensor(std::span<const double>(departure_));
    parts_.push_back(group_.timeline_->channel().begin(call));
  }
}

void StartedLossyCall::play() {
  if (times_ || !start_) return;
  GroupTimeline& timeline = *group_.timeline_;
  const CallArguments& call = arguments_.get();
  if (call.operation == Operation::kSend) {
    std::tie(times_, departure_) = timeline.play_send(call, *start_);
    begin_departure();
  } else if (receives()) {
    if (!is_posted_) begin_departure();
    if (const auto part = std::move(departure_part_)) part->finish();
    times_ = timeline.play_recv(call, *start_, departure_);
  } else {
    times_ = timeline.play_collective(call, *start_);
  }
  if (group_.state_->fates_need_times) call_.draw();
  if (receives() && !is_posted_) post_data();
}

void StartedLossyCall::pass_time() const {
  if (times_) group_.state_->clock->wait_for(*times_, arguments().message.traffic_class);
}

void StartedLossyCall::run_in_queue() {
  const CallArguments& call = arguments_.get();
  Communicator& channel = group_.channel_of_queue(call);
  const StreamTurns::Turn turn(group_.turns_, stream_of(call));
  play();
  call_.run(channel, call_.scratch());
  if (stream_of(call) != nullptr) call_.release_scratch();
}

void StartedLossyCall::finish() {
  RankState& state = *group_.state_;
  const VirtualClock::Pause pause(state.clock_or_null());
  state.play_started(this);
  if (in_queue_ != nullptr) in_queue_->finish();
  if (receives()) group_.play_receives(arguments().peer, this);
  pass_time();
  await_parts();
  if (receives()) {
    const StreamTurns::Turn turn(group_.turns_, arguments_.get().output.stream);
    call_.received();
    if (call_.is_sampled()) call_.compare_message();
  }
  call_.note_samples();
}

bool StartedLossyCall::finished() {
  const VirtualClock::Pause pause(group_.state_->clock_or_null());
  if ((group_.timeline_ && !times_) || (receives() && !is_posted_)) return false;
  if (in_queue_ != nullptr) return in_queue_->finished();
  return std::ranges::all_of(parts_, [](const auto& part) { return part == nullptr || part->finished(); });
}

void StartedLossyCall::begin_send(ConstTensor data) {
  CallArguments call = arguments_.get();
  call.input = data;
  parts_.push_back(group_.inner_.begin(call));
}

void StartedLossyCall::begin_recv(Tensor data) {
  CallArguments call = arguments_.get();
  call.output = data;
  parts_.push_back(group_.inner_.begin(call));
}

// Waits for all parts even if one fails, so that nothing refers to the buffers of the call afterwards.
void StartedLossyCall::await_parts() {
  std::exception_ptr thrown;
  if (departure_part_ != nullptr) parts_.push_back(std::move(departure_part_));
  for (const std::unique_ptr<WorkInFlight>& part : std::exchange(parts_, {})) {
    try {
      if (part != nullptr) part->finish();
    } catch (...) {
      if (thrown == nullptr) thrown = std::current_exception();
    }
  }
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

}  // namespace droptest::comm
