// SPDX-License-Identifier: Apache-2.0
#include "comm/started/deferred_calls.h"

#include <algorithm>
#include <utility>

#include "comm/communicator.h"

namespace droptest::comm {

class DeferredCalls::DeferredInFlight final : public WorkInFlight {
 public:
  DeferredInFlight(DeferredCalls& calls, std::shared_ptr<Deferred> call) : calls_(calls), call_(std::move(call)) {}

  void finish() override {
    if (!call_->is_done) calls_.run_until(*call_);
    if (call_->thrown) std::rethrow_exception(call_->thrown);
  }
  bool finished() override { return call_->is_done; }

 private:
  DeferredCalls& calls_;
  std::shared_ptr<Deferred> call_;
};

bool DeferredCalls::Deferred::may_stay() const {
  return operation() == Operation::kRecv && arguments.get().message.ordinal.has_value();
}

/// Messages of a pair of ranks keep their order.
bool DeferredCalls::Deferred::comes_with(const Deferred& message) const {
  return group == message.group && arguments.get().peer == message.arguments.get().peer;
}

std::unique_ptr<WorkInFlight> DeferredCalls::start(BlockingCall call, const Communicator& group,
                                                   const CallArguments& arguments) {
  auto deferred = std::make_shared<Deferred>(std::move(call), group, arguments);
  waiting_.push_back(deferred);
  return std::make_unique<DeferredInFlight>(*this, std::move(deferred));
}

std::unique_ptr<WorkInFlight> DeferredCalls::start(Communicator& communicator, const CallArguments& arguments) {
  return start([&communicator](const CallArguments& kept) { call_now(communicator, kept); }, communicator, arguments);
}

void DeferredCalls::run(Deferred& call) {
  try {
    call.call(call.arguments.get());
  } catch (...) {
    call.thrown = std::current_exception();
  }
  call.is_done = true;
}

// The sends ahead of the next collective.
void DeferredCalls::run_sends() {
  const auto is_collective = [](const std::shared_ptr<Deferred>& call) { return !comm::is_message(call->operation()); };
  const auto is_send = [](const std::shared_ptr<Deferred>& call) { return call->operation() == Operation::kSend; };
  std::stable_partition(waiting_.begin(), std::ranges::find_if(waiting_, is_collective), is_send);
  while (!waiting_.empty() && is_send(waiting_.front())) {
    const std::shared_ptr<Deferred> call = waiting_.front();
    waiting_.pop_front();
    run(*call);
  }
}

void DeferredCalls::run(Those those) {
  if (is_running_ || waiting_.empty()) return;
  is_running_ = true;
  std::deque<std::shared_ptr<Deferred>> left;
  while (!waiting_.empty()) {
    run_sends();
    if (waiting_.empty()) break;
    const std::shared_ptr<Deferred> call = waiting_.front();
    waiting_.pop_front();
    if (those == Those::kOrdered && call->may_stay()) {
      left.push_back(call);
    } else {
      run(*call);
    }
  }
  waiting_ = std::move(left);
  is_running_ = false;
}

void DeferredCalls::run_all() { run(Those::kAll); }

void DeferredCalls::run_ordered() { run(Those::kOrdered); }

void DeferredCalls::run_until(const Deferred& wanted) {
  if (comm::is_message(wanted.operation()) && !is_running_) {
    is_running_ = true;
    run_sends();
    for (auto next = waiting_.begin(); !wanted.is_done && next != waiting_.end();) {
      if (!comm::is_message((*next)->operation())) break;  // collectives run in the order of their starts
      if ((*next)->may_stay() && !(*next)->comes_with(wanted)) {
        ++next;
        continue;
      }
      const std::shared_ptr<Deferred> call = *next;
      next = waiting_.erase(next);
      run(*call);
    }
    is_running_ = false;
  }
  if (!wanted.is_done) run_all();
}

}  // namespace droptest::comm
