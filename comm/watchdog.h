// SPDX-License-Identifier: Apache-2.0
// Deadlines for asynchronous operations on transports without deadlines: the watchdog ends a group instead of letting
// it hang.
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

/// A started operation that no thread waits for. Used by the watchdog's thread.
class OperationInFlight {
 public:
  virtual ~OperationInFlight() = default;
  /// Whether the work before it is done, so that only its peers can delay it. Throws: the error of the device.
  virtual bool started() = 0;
  /// Whether it is done. Throws: the error of the device.
  virtual bool finished() = 0;
};

/// A rank's end of a transport, for a watchdog. Thread safety: all methods are called from the watchdog's thread, while
/// the rank's own thread makes calls.
class WatchedTransport {
 public:
  virtual ~WatchedTransport() = default;
  /// The failure of the group, found by any rank or by the transport itself; absent without a failure. Never waits.
  virtual std::optional<Failure> failure() = 0;
  /// Names the ranks that delay `call` among `world_ranks`, its members; it has made no progress for the timeout.
  virtual Failure explain_stall(const Call& call, const std::vector<int>& world_ranks) = 0;
  /// A failure of this rank's device, as the other ranks will report it.
  virtual Failure device_failure(const Call& call, const std::string& reason) = 0;
  /// Tells the other ranks, and ends all operations in flight, so that waiting threads return. Called once.
  virtual void end(const Failure& failure) noexcept = 0;
};

/// Watches the operations of one rank, on a thread of its own. When one makes no progress for the timeout, or the
/// transport shows a failure, it ends the transport, once.
///
/// Deadlines: operations of a queue are done in order. The timeout of the first unfinished operation begins when the
/// watchdog sees that it has started; earlier work on the queue does not count.
/// Thread safety: all methods may be called from any thread.
class Watchdog {
 public:
  /// Polls operations in flight every `poll`. The transport is shared with its creator: a thread that hangs in the
  /// transport's end(), for longer than `patience`, outlives the watchdog. The clock, which measures the timeout, is
  /// borrowed; the machine's clock measures the other times.
  Watchdog(std::shared_ptr<WatchedTransport> transport, std::chrono::milliseconds timeout,
           std::chrono::milliseconds poll, std::chrono::milliseconds patience = std::chrono::seconds(10),
           const Clock& clock = steady_clock());
  /// Forgets all operations in flight. Waits for the thread, at most for the patience.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// `queue` identifies a sequence of operations that are done in order: a stream. `world_ranks` are the members,
  /// shared by the calls of one communicator; the operation is shared with it.
  void watch(const void* queue, const Call& call, std::shared_ptr<const std::vector<int>> world_ranks,
             std::shared_ptr<OperationInFlight> operation);

  /// Ends the transport with this failure, unless it was ended before; returns at its end, or after the patience.
  void end(const Failure& failure);

  /// The failure that ended the transport.
  std::optional<Failure> ended() const;

  /// The operations in flight, for ranks that ask for this rank's activity: "all_reduce(sum of 12 float32, ...)"; ""
  /// without operations.
  std::string activity() const;

 private:
  struct Entry {
    Call call;
    std::shared_ptr<const std::vector<int>> world_ranks;
    std::shared_ptr<OperationInFlight> operation;
    std::optional<Clock::TimePoint> deadline;  ///< absent: the operation was not seen to start
  };
  struct State;

  static void run(const std::shared_ptr<State>& state);
  static std::optional<Failure> look(State& state);

  const std::shared_ptr<State> state_;  ///< shared with the thread, which may be left behind
  std::thread thread_;
};

}  // namespace droptest::comm
