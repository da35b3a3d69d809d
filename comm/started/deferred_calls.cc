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
    if (!call_->is_done) calls_.run_all();
    if (call_->thrown) std::rethrow_exception(call_->thrown);
  }
  bool finished() override { return call_->is_done; }

 private:
  DeferredCalls& calls_;
  std::shared_ptr<Deferred> call_;
};

bool DeferredCalls::Deferred::is_message() const { return comm::is_message(arguments.get().operation); }

std::unique_ptr<WorkInFlight> DeferredCalls::start(BlockingCall call, const CallArguments& arguments) {
  auto deferred = std::make_shared<Deferred>(std::move(call), arguments);
  waiting_.push_back(deferred);
  return std::make_unique<DeferredInFlight>(*this, std::move(deferred));
}

std::unique_ptr<WorkInFlight> DeferredCalls::start(Communicator& communicator, const CallArguments& arguments) {
  return start([&communicator](const CallArguments& kept) { call_now(communicator, kept); }, arguments);
}

void DeferredCalls::run(Deferred& call) {
  try {
    call.call(call.arguments.get());
  } catch (...) {
    call.thrown = std::current_exception();
  }
  call.is_done = true;
}

void DeferredCalls::run_all() {
  if (is_running_ || waiting_.empty()) return;
  is_running_ = true;
  while (!waiting_.empty()) {
    const auto is_message = [](const std::shared_ptr<Deferred>& call) { return call->is_message(); };
    const auto is_send = [](const std::shared_ptr<Deferred>& call) {
      return call->arguments.get().operation == Operation::kSend;
    };
    std::stable_partition(waiting_.begin(), std::ranges::find_if_not(waiting_, is_message), is_send);
    const std::shared_ptr<Deferred> call = waiting_.front();
    waiting_.pop_front();
    run(*call);
  }
  is_running_ = false;
}

}  // namespace droptest::comm
