// SPDX-License-Identifier: Apache-2.0
// A clock that stands still until a test moves it, so that no result depends on how fast threads run.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/clock.h"

namespace droptest::comm {

/// Returns when `count` is at least `least`.
inline void await(const std::atomic<int>& count, int least) {
  for (int seen = count; seen < least; seen = count) count.wait(seen);
}

class FakeClock final : public Clock {
 public:
  TimePoint now() const override {
    const std::lock_guard lock(mutex_);
    return now_;
  }

  void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                  TimePoint deadline) const override {
    const std::optional<std::uint64_t> waiter = begin_wait({&changed, lock.mutex()}, deadline);
    if (!waiter) return;
    changed.wait(lock);
    const std::lock_guard own(mutex_);
    waiters_.erase(*waiter);
  }

  /// Calls `on_sleep` instead of sleeping.
  void sleep_for(std::chrono::milliseconds /*time*/) const override { on_sleep(); }
  std::function<void()> on_sleep = [] {};

  bool wait_ready(int fd, short events, TimePoint deadline) const override {
    for (;;) {
      const bool over = now() >= deadline;
      pollfd waited{fd, events, 0};
      if (::poll(&waited, 1, over ? 0 : 1) > 0) return true;
      if (over) return false;
    }
  }

  /// Moves the time and wakes all who wait by this clock.
  void advance(std::chrono::milliseconds time) {
    std::unique_lock own(mutex_);
    now_ += time;
    const std::map<std::uint64_t, Waiter> woken = std::exchange(waiters_, {});
    own.unlock();
    for (const auto& [number, waiter] : woken) {
      { const std::lock_guard asleep(*waiter.mutex); }  // a waiter that read the time before it moved is asleep by now
      waiter.changed->notify_all();
    }
  }

  /// Returns when at least `count` threads wait by this clock for a future deadline.
  void await_waiters(std::size_t count) const {
    std::unique_lock own(mutex_);
    came_.wait(own, [&] { return waiters_.size() >= count; });
  }

 private:
  struct Waiter {
    std::condition_variable* changed;
    std::mutex* mutex;
  };

  // Does nothing if the deadline has passed.
  std::optional<std::uint64_t> begin_wait(const Waiter& waiter, TimePoint deadline) const {
    const std::lock_guard own(mutex_);
    if (now_ >= deadline) return std::nullopt;
    waiters_.emplace(++last_waiter_, waiter);
    came_.notify_all();
    return last_waiter_;
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  mutable std::map<std::uint64_t, Waiter> waiters_;  ///< waiters that advance() has not woken
  mutable std::uint64_t last_waiter_ = 0;
  TimePoint now_{std::chrono::hours(1)};
};

}  // namespace droptest::comm
