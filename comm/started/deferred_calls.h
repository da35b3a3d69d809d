// SPDX-License-Identifier: Apache-2.0
// Started calls that a rank executes at its wait.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "comm/call.h"
#include "comm/started/work.h"

namespace droptest::comm {

/// Runs started calls as blocking ones, in the order of their starts, when the rank waits for one of them or makes
/// another call. Among messages without a collective between them, the sends go first, so that ranks may start their
/// receives early. A receive with an ordinal, which has no order among other calls, may stay until it is waited for:
/// its peer may send it later. Thread safety: none; a rank has one.
class DeferredCalls {
 public:
  using BlockingCall = std::function<void(const CallArguments&)>;

  /// `call` makes the blocking call on that group; the objects that it borrows outlive the work.
  std::unique_ptr<WorkInFlight> start(BlockingCall call, const Communicator& group, const CallArguments& arguments);
  /// The call on `communicator`, which is borrowed likewise.
  std::unique_ptr<WorkInFlight> start(Communicator& communicator, const CallArguments& arguments);

  /// Runs all started calls. The wait of a work throws the exception of its call. Does nothing while it already runs.
  void run_all();
  /// The same, but for receives that may stay.
  void run_ordered();

  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }

 private:
  struct Deferred {
    Deferred(BlockingCall to_make, const Communicator& of, const CallArguments& to_keep)
        : call(std::move(to_make)), group(&of), arguments(to_keep) {}
    Operation operation() const { return arguments.get().operation; }
    bool may_stay() const;
    bool comes_with(const Deferred& message) const;
    BlockingCall call;
    const Communicator* group;
    KeptArguments arguments;
    bool is_done = false;
    std::exception_ptr thrown;
  };
  class DeferredInFlight;
  static void run(Deferred& call);
  enum class Those : std::uint8_t { kAll, kOrdered };
  void run(Those those);
  void run_until(const Deferred& wanted);
  void run_sends();

  std::deque<std::shared_ptr<Deferred>> waiting_;  ///< each shared with its work
  bool is_running_ = false;
};

}  // namespace droptest::comm
