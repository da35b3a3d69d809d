// SPDX-License-Identifier: Apache-2.0
// Started receives that a rank executes at its wait.
#pragma once

#include <deque>
#include <exception>
#include <memory>

#include "comm/call.h"
#include "comm/started/work.h"

namespace droptest::comm {

/// Runs started receives as blocking ones, in the order of their starts, when the rank waits for one of them or makes
/// another call. A wait does not run receives with an ordinal from other ranks: their peer may send them later. Thread
/// safety: none; each rank has one.
class DeferredReceives {
 public:
  /// Starts the call on `communicator`, which is borrowed and outlives the work.
  std::unique_ptr<WorkInFlight> start(Communicator& communicator, const CallArguments& arguments);
  /// Runs all receives. The wait of a work throws the exception of its call. Does nothing while it already runs.
  void run_all();

 private:
  struct Deferred {
    Deferred(Communicator& on, const CallArguments& to_keep) : communicator(on), arguments(to_keep) {}
    Communicator& communicator;
    KeptArguments arguments;
    bool is_done = false;
    std::exception_ptr thrown;
  };
  class DeferredInFlight;
  static void run(Deferred& call);
  void run_until(const Deferred& wanted);

  std::deque<std::shared_ptr<Deferred>> waiting_;  ///< each shared with its work
  bool is_running_ = false;
};

}  // namespace droptest::comm
