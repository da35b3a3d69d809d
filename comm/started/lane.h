// SPDX-License-Identifier: Apache-2.0
// Started calls that run while their rank computes.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/started/work.h"

namespace droptest::comm {

/// Runs tasks one after the other on a thread of its own, which starts with the first task and sleeps between tasks.
/// Thread safety: one thread uses it, the rank's.
class Lane {
 public:
  Lane() = default;
  /// Waits until all tasks are done.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Starts a task. Its work is done when `run` has returned, and throws the exception of `run`.
  std::unique_ptr<WorkInFlight> start(std::function<void()> run);
  /// Returns when all tasks so far are done: the caller may run the next one.
  void drain();

 private:
  struct Task {
    std::function<void()> run;
    bool is_done = false;
    std::exception_ptr thrown;
  };
  class TaskInFlight;
  void run_tasks();

  std::mutex mutex_;  ///< guards the members below, except the thread
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;  ///< each shared with its work; the first one runs
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace droptest::comm
