// SPDX-License-Identifier: Apache-2.0
// The state of a process with NCCL's functions interposed: its communicators, those that are being made, the calls that
// belong together, and the losses that wait for NCCL.
#pragma once

#include <nccl.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/nccl/member.h"

namespace droptest::nccl_shim {

/// A communicator that NCCL makes. Afterwards its members tell each other their world ranks.
struct NewCommunicator {
  /// Place of the communicator: NCCL writes it at the latest when the call has taken effect.
  ncclComm_t* place = nullptr;
  ncclComm_t polled = nullptr;  ///< its parent, which the program asks whether the call has taken effect; or null
  std::shared_ptr<RankLosses> losses;  ///< losses of the parent; null: no parent
};

/// The interposer of a process, if DROPTEST_NETWORK is set. NCCL's functions have no argument that could name it.
/// Thread safety: all methods may be called from any thread at once; groups are the calling thread's, as NCCL's are.
/// Throws: ConfigError and DeviceError that name the rank.
class Interposer {
 public:
  /// Null if DROPTEST_NETWORK is not set or empty, and in a forked child of a process that has called it: all calls are
  /// then passed on.
  static Interposer* get();

  /// Called before a rank joins a communicator: reads the file of DROPTEST_NETWORK, so that a mistake in it is an error
  /// before any rank waits for another.
  void check_network(int rank, int ranks);
  /// Called after the call that makes communicators, which has returned `result`. Returns the result for the program.
  ncclResult_t made(std::vector<NewCommunicator> made, ncclResult_t result);
  /// Called after a query of a communicator, which has returned `state`: goes on with the work that waits for it.
  /// Returns the state for the program.
  ncclResult_t queried(ncclComm_t comm, ncclResult_t state);
  /// Called before a communicator is destroyed: waits for its device, writes the counts of its rank, and forgets it.
  void ends(ncclComm_t comm);
  /// The objects of a forgotten communicator. NCCL's work may use its memory, and freeing it waits for that work.
  struct Forgotten {
    std::shared_ptr<Member> member;  ///< null: the communicator is unknown
    std::vector<std::shared_ptr<const void>> exchanges;
  };
  Forgotten forget(ncclComm_t comm);
  /// Writes the counts of communicators that were not destroyed. Called when the work of the process is done.
  void write_all_counts();

  /// The calling rank's membership. Throws: ConfigError for a communicator that was made by a function which this
  /// library does not know: it would lose nothing.
  std::shared_ptr<Member> member(ncclComm_t comm);

  void group_started();
  /// Called after NCCL's own ncclGroupEnd(). Returns the result for the program.
  ncclResult_t group_ended(ncclResult_t result);
  /// Called after NCCL's own ncclGroupSimulateEnd(), which puts no work on streams.
  void group_simulated();
  bool in_group() const;
  /// Member::scratch(), valid until the group that is open now ends.
  void* scratch(const std::shared_ptr<Member>& member, const NcclCall& call, std::size_t bytes);
  /// Called after the call of NCCL that `fill` belongs to, which has returned `result`.
  void lose_after(ncclComm_t comm, const std::shared_ptr<Member>& member, const Fill& fill, ncclResult_t result);

 private:
  struct Waiting {
    ncclComm_t comm = nullptr;
    std::shared_ptr<Member> member;  // shared with members_, which may forget it first
    Fill fill;
  };
  // The exchange of identities over a new communicator.
  class Exchange;
  struct OpenGroup {
    int depth = 0;
    std::vector<NewCommunicator> made;
    std::vector<Waiting> fills;
    std::vector<std::shared_ptr<Member>> members;  // members with scratch in use
  };
  static OpenGroup& open_group();

  ncclResult_t introduce(std::vector<NewCommunicator> made);
  void add(const Exchange& exchange);
  std::shared_ptr<RankLosses> losses_of(int rank, int world_size);

  std::mutex mutex_;
  bool network_is_checked_ = false;
  std::map<ncclComm_t, std::shared_ptr<Member>> members_;
  std::map<int, std::shared_ptr<RankLosses>> losses_;  // losses by world rank, kept until the process ends
  std::set<ncclComm_t> non_blocking_;                  // communicators of members_ that do not block
  std::vector<NewCommunicator> being_made_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;  // exchanges of communicators that do not block
  std::vector<Waiting> waiting_;                      // calls of such communicators that have not taken effect
};

}  // namespace droptest::nccl_shim
