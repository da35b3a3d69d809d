// SPDX-License-Identifier: Apache-2.0
#include "comm/started/queued_calls.h"

#include <algorithm>
#include <utility>

namespace droptest::comm {

class QueuedCalls::QueuedInFlight final : public WorkInFlight {
 public:
  QueuedInFlight(QueuedCalls& calls, std::shared_ptr<Queued> call) : calls_(calls), call_(std::move(call)) {}
  ~QueuedInFlight() override { std::erase(calls_.waiting_, call_); }
  QueuedInFlight(const QueuedInFlight&) = delete;
  QueuedInFlight& operator=(const QueuedInFlight&) = delete;

  void finish() override {
    calls_.run_until(*call_);
    if (call_->thrown) std::rethrow_exception(call_->thrown);
  }
  bool finished() override { return call_->is_done; }

 private:
  QueuedCalls& calls_;
  std::shared_ptr<Queued> call_;
};

std::unique_ptr<WorkInFlight> QueuedCalls::start(std::function<void()> run, Others others) {
  auto call = std::make_shared<Queued>();
  call->run = std::move(run);
  call->others = others;
  waiting_.push_back(call);
  return std::make_unique<QueuedInFlight>(*this, std::move(call));
}

bool QueuedCalls::holds_up() const {
  return std::ranges::any_of(waiting_, [](const auto& call) { return call->others == Others::kQueueUp; });
}

void QueuedCalls::run_first() {
  const std::shared_ptr<Queued> call = waiting_.front();
  waiting_.pop_front();
  is_running_ = true;
  try {
    call->run();
  } catch (...) {
    call->thrown = std::current_exception();
  }
  is_running_ = false;
  call->run = nullptr;
  call->is_done = true;
}

void QueuedCalls::run_all() {
  while (!is_running_ && !waiting_.empty()) run_first();
}

void QueuedCalls::run_until(const Queued& wanted) {
  while (!wanted.is_done && !is_running_ && !waiting_.empty()) run_first();
}

}  // namespace droptest::comm
