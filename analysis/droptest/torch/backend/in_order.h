// SPDX-License-Identifier: Apache-2.0
// What follows on the results of calls, in the order of the calls.
#pragma once

#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace c10d::droptest {

using Finish = std::function<void()>;

/// Runs a function after each of a group's works. The order is that of the calls, whatever the order of the ends; only
/// a call without a work, whose results are there at once for the current stream, is not waited for.
/// Thread safety: any thread.
class InOrder : public std::enable_shared_from_this<InOrder> {
 public:
  /// The work whose end comes after `finish()`. It has a future where the inner work has one. Null where `work` is, as
  /// NCCL returns for calls that are not asynchronous: then finish() has run.
  c10::intrusive_ptr<Work> after(const c10::intrusive_ptr<Work>& work, Finish finish);

 private:
  struct Entry {
    c10::intrusive_ptr<Work> work;
    Finish finish;
    c10::intrusive_ptr<c10::ivalue::Future> done;  // null: the inner work has no future
    bool ended = false;
    bool finished = false;
    c10::IValue value;
    std::exception_ptr error;  // of the inner work, then of finish()
  };
  // Of an inner work without a future: what follows on it runs while somebody waits for it.
  class WaitedWork;

  using Entries = std::deque<std::shared_ptr<Entry>>;
  Entries run_ready();                            // with the mutex held; returns what complete() must get
  static void complete(const Entries& finished);  // without the mutex: callbacks of futures may make calls
  void wait_for(const std::shared_ptr<Entry>& entry);

  std::mutex mutex_;
  Entries entries_;
};

class InOrder::WaitedWork final : public Work {
 public:
  WaitedWork(std::shared_ptr<InOrder> order, std::shared_ptr<Entry> entry)
      : order_(std::move(order)), entry_(std::move(entry)) {}
  bool isCompleted() override { return entry_->work->isCompleted(); }
  std::vector<at::Tensor> result() override { return entry_->work->result(); }
  void synchronize() override { order_->wait_for(entry_); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    order_->wait_for(entry_);
    return true;
  }
  void abort() override { entry_->work->abort(); }

 private:
  const std::shared_ptr<InOrder> order_;  // shared by the group and its works
  const std::shared_ptr<Entry> entry_;
};

inline c10::intrusive_ptr<Work> InOrder::after(const c10::intrusive_ptr<Work>& work, Finish finish) {
  if (!work) {
    finish();
    return work;
  }
  auto entry = std::make_shared<Entry>();
  entry->work = work;
  entry->finish = std::move(finish);
  c10::intrusive_ptr<c10::ivalue::Future> inner;
  try {
    inner = work->getFuture();
  } catch (const c10::Error&) {
    // this kind of work has none
  }
  if (inner) entry->done = inner->createInstance(inner->elementType());
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back(entry);
  }
  if (!inner) return c10::make_intrusive<WaitedWork>(shared_from_this(), entry);
  inner->addCallback([self = shared_from_this(), entry](c10::ivalue::Future& ended) {
    std::unique_lock lock(self->mutex_);
    entry->ended = true;
    if (ended.hasError()) {
      entry->error = ended.exception_ptr();
    } else {
      entry->value = ended.value();
    }
    const Entries finished = self->run_ready();
    lock.unlock();
    complete(finished);
  });
  return Work::create_from_future(entry->done);
}

inline InOrder::Entries InOrder::run_ready() {
  Entries ready;
  while (!entries_.empty() && entries_.front()->ended) {
    const std::shared_ptr<Entry> entry = entries_.front();
    entries_.pop_front();
    try {
      if (entry->error == nullptr) entry->finish();
    } catch (...) {
      entry->error = std::current_exception();
    }
    entry->finished = true;
    ready.push_back(entry);
  }
  return ready;
}

inline void InOrder::complete(const Entries& finished) {
  for (const std::shared_ptr<Entry>& entry : finished) {
    if (!entry->done) continue;
    if (entry->error != nullptr) {
      entry->done->setError(entry->error);
    } else {
      entry->done->markCompleted(entry->value);
    }
  }
}

// Waits for the works before it, too.
inline void InOrder::wait_for(const std::shared_ptr<Entry>& entry) {
  std::unique_lock lock(mutex_);
  while (!entry->finished) {
    const std::shared_ptr<Entry> first = entries_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      first->done ? first->done->wait() : static_cast<void>(first->work->wait());
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (!first->done && !first->finished) {
      first->ended = true;
      first->error = error;
      const Entries finished = run_ready();
      lock.unlock();
      complete(finished);
      lock.lock();
    }
  }
  if (entry->error != nullptr) std::rethrow_exception(entry->error);
}

}  // namespace c10d::droptest
