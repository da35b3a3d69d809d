// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/started_lossy_call.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/device/stream_turns.h"
#include "comm/lossy/clock/virtual_clock.h"
#include "comm/lossy/rank_state.h"

namespace droptest::comm {

StartedLossyCall::StartedLossyCall(LossyGroup& group, const CallArguments& arguments)
    : group_(group), arguments_(arguments), call_(group, arguments_.get()) {
  RankState& state = *group_.state;
  if (state.clock) ready_seconds_ = state.clock->time().seconds;
  state.started.push_back(this);
}

StartedLossyCall::~StartedLossyCall() {
  try {
    await_parts();
  } catch (...) {
    // The group has failed; its next call throws the reason.
  }
  std::erase(group_.state->started, this);
}

void StartedLossyCall::start() {
  const CallArguments& call = arguments_.get();
  if (call.operation == Operation::kSend) {
    play();  // its receiver may wait for the time of departure
    begin_send(call_.outgoing());
    if (call_.is_sampled()) begin_send(call.input);
  } else if (receives()) {
    call_.before_receipt();
    begin_recv(call.output);
    if (call_.is_sampled()) begin_recv(call_.exact());
  } else if (stream_of(call) != nullptr) {
    call_.run(group_.inner, call_.scratch());
    call_.release_scratch();
  } else {
    parts_.push_back(group_.lane_->start([this] { call_.run(*group_.lane_channel_, group_.lane_scratch_); }));
  }
}

void StartedLossyCall::play() {
  if (!times_ && group_.timeline_) times_ = group_.timeline_->play(arguments_.get(), call_.arrival(), ready_seconds_);
}

void StartedLossyCall::pass_time() const {
  if (times_) group_.state->clock->wait_for(*times_, arguments().message.traffic_class);
}

void StartedLossyCall::finish() {
  RankState& state = *group_.state;
  const VirtualClock::Pause pause(state.clock_or_null());
  state.play_started(this);
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
  const VirtualClock::Pause pause(group_.state->clock_or_null());
  if (group_.timeline_ && !times_) return false;
  return std::ranges::all_of(parts_, [](const auto& part) { return part == nullptr || part->finished(); });
}

void StartedLossyCall::begin_send(ConstTensor data) {
  CallArguments call = arguments_.get();
  call.input = data;
  parts_.push_back(group_.inner.begin(call));
}

void StartedLossyCall::begin_recv(Tensor data) {
  CallArguments call = arguments_.get();
  call.output = data;
  parts_.push_back(group_.inner.begin(call));
}

// Waits for all parts even if one fails, so that nothing refers to the buffers of the call afterwards.
void StartedLossyCall::await_parts() {
  std::exception_ptr thrown;
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
