// SPDX-License-Identifier: Apache-2.0
#include "comm/started/deferred_receives.h"

#include <utility>

#include "comm/communicator.h"

namespace droptest::comm {

class DeferredReceives::DeferredInFlight final : public WorkInFlight {
 public:
  DeferredInFlight(DeferredReceives& calls, std::shared_ptr<Deferred> call) : calls_(calls), call_(std::move(call)) {}

  void finish() override {
    if (!call_->is_done) calls_.run_until(*call_);
    if (call_->thrown) std::rethrow_exception(call_->thrown);
  }
  bool finished() override { return call_->is_done; }

 private:
  DeferredReceives& calls_;
  std::shared_ptr<Deferred> call_;
};

std::unique_ptr<WorkInFlight> DeferredReceives::start(Communicator& communicator, const CallArguments& arguments) {
  auto deferred = std::make_shared<Deferred>(communicator, arguments);
  waiting_.push_back(deferred);
  return std::make_unique<DeferredInFlight>(*this, std::move(deferred));
}

void DeferredReceives::run(Deferred& call) {
  try {
    call.communicator.run(call.arguments.get());
  } catch (...) {
    call.thrown = std::current_exception();
  }
  call.is_done = true;
}

void DeferredReceives::run_all() {
  if (is_running_) return;
  is_running_ = true;
  while (!waiting_.empty()) {
    const std::shared_ptr<Deferred> call = waiting_.front();
    waiting_.pop_front();
    run(*call);
  }
  is_running_ = false;
}

// Messages of a pair of ranks keep their order.
void DeferredReceives::run_until(const Deferred& wanted) {
  if (is_running_) return;
  is_running_ = true;
  for (auto next = waiting_.begin(); !wanted.is_done && next != waiting_.end();) {
    const CallArguments& arguments = (*next)->arguments.get();
    if (arguments.message.ordinal && arguments.peer != wanted.arguments.get().peer) {
      ++next;
      continue;
    }
    const std::shared_ptr<Deferred> call = *next;
    next = waiting_.erase(next);
    run(*call);
  }
  is_running_ = false;
}

}  // namespace droptest::comm
