// SPDX-License-Identifier: Apache-2.0
// Deadlines for operations that go on by themselves, on transports that know none: ends a group instead of letting it
// hang.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/call.h"
#include "comm/clock.h"

namespace droptest::comm {

/// An operation that was begun and is not waited for. Used by the watchdog's thread.
class OperationInFlight {
 public:
  virtual ~OperationInFlight() = default;
  /// Whether what came before it is done, so that only its peers can hold it up. Throws: what is wrong with the device.
  virtual bool started() = 0;
  /// Throws: what is wrong with the device.
  virtual bool finished() = 0;
};

/// A rank's end of a transport, as a watchdog sees it. Thread safety: all methods are called from the watchdog's
/// thread, while the rank's own thread makes calls.
class WatchedTransport {
 public:
  virtual ~WatchedTransport() = default;
  /// Why the group cannot go on, found by any rank or shown by the transport itself; nothing while all is well. Never
  /// waits.
  virtual std::optional<Failure> failure() = 0;
  /// Who holds up `call`, in which those world ranks take part: it has made no progress for the timeout.
  virtual Failure explain_stall(const Call& call, const std::vector<int>& world_ranks) = 0;
  /// A failure of this rank's device, in the form that the others shall read.
  virtual Failure device_failure(const Call& call, const std::string& reason) = 0;
  /// Tells the other ranks, and ends all that is in flight, so that who waits for it comes free. Called once.
  virtual void end(const Failure& failure) noexcept = 0;
};

/// Watches the operations of one rank, on a thread of its own. When one makes no progress for the timeout, or the
/// transport shows a failure, it ends the transport, once.
///
/// Deadlines: operations of a queue are done in order. The first of those that are not done is given the timeout from
/// when it was seen to have started; what keeps the queue busy before it does not count.
/// Thread safety: all methods may be called from any thread.
class Watchdog {
 public:
  /// Looks at operations in flight every `poll`. The transport is shared with who made it: a thread that hangs in its
  /// end(), for longer than `patience`, outlives the watchdog.
  /// The clock, which the timeout is measured by, is borrowed; the others are by the machine's.
  Watchdog(std::shared_ptr<WatchedTransport> transport, std::chrono::milliseconds timeout,
           std::chrono::milliseconds poll, std::chrono::milliseconds patience = std::chrono::seconds(10),
           const Clock& clock = steady_clock());
  /// Forgets what is in flight. Waits for the thread, at most for the patience.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// `queue` tells apart what is done in order: a stream. `world_ranks` take part, and are shared by the calls of one
  /// communicator; the operation is shared with it.
  void watch(const void* queue, const Call& call, std::shared_ptr<const std::vector<int>> world_ranks,
             std::shared_ptr<OperationInFlight> operation);

  /// Ends the transport for this, unless it was ended before; returns when that is done, or the patience over.
  void end(const Failure& failure);

  /// What the transport was ended for.
  std::optional<Failure> ended() const;

  /// What is in flight, for ranks that ask what this one is doing: "all_reduce(sum of 12 float32, ...)"; where nothing
  /// is, "".
  std::string activity() const;

 private:
  struct Entry {
    Call call;
    std::shared_ptr<const std::vector<int>> world_ranks;
    std::shared_ptr<OperationInFlight> operation;
    std::optional<Clock::TimePoint> deadline;  ///< none: not seen to have started
  };
  struct State;

  static void run(const std::shared_ptr<State>& state);
  static std::optional<Failure> look(State& state);

  const std::shared_ptr<State> state_;  ///< shared with the thread, which may be left behind
  std::thread thread_;
};

}  // namespace droptest::comm
