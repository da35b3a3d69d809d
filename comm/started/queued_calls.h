// SPDX-License-Identifier: Apache-2.0
// Started calls that a rank executes at its waits.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>

#include "comm/started/work.h"

namespace droptest::comm {

/// Runs calls in the order of their starts. The wait for a call runs it and all calls before it, but none after it.
/// Thread safety: none; each rank has one.
class QueuedCalls {
 public:
  /// Whether other calls may be made before one that waits here.
  enum class Others : std::uint8_t { kMayPass, kQueueUp };
  /// Queues a call. Its work throws the exception of `run`. If the work is destroyed before its call has run, the call
  /// is removed from the queue.
  std::unique_ptr<WorkInFlight> start(std::function<void()> run, Others others);
  /// Whether other collectives of the rank must queue up.
  bool holds_up() const;
  /// Runs all calls. Does nothing while one runs.
  void run_all();
  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }

 private:
  struct Queued {
    std::function<void()> run;
    Others others;
    bool is_done = false;
    std::exception_ptr thrown;
  };
  class QueuedInFlight;
  void run_first();
  void run_until(const Queued& wanted);

  std::deque<std::shared_ptr<Queued>> waiting_;  ///< each shared with its work
  bool is_running_ = false;
};

}  // namespace droptest::comm
