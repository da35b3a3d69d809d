// SPDX-License-Identifier: Apache-2.0
// The clock of all timeouts.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace droptest::comm {

/// A steady clock, and waiting by it. Tests replace it by a clock with a time that they set. Thread safety: all methods
/// may be called from any thread.
class Clock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  /// Returns when notified, at the deadline, or, as condition variables do, for no reason.
  virtual void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                          TimePoint deadline) const = 0;
  virtual void sleep_for(std::chrono::milliseconds time) const = 0;
  /// Waits until the file descriptor is ready for `events`, as poll() means them; false: not before the deadline.
  /// Throws: std::system_error.
  virtual bool wait_ready(int fd, short events, TimePoint deadline) const = 0;
};

/// The machine's clock, which lasts as long as the program.
const Clock& steady_clock();

}  // namespace droptest::comm
