// SPDX-License-Identifier: Apache-2.0
// What a process with NCCL's functions interposed knows: its communicators, those that are being made, the calls that
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

/// A communicator that NCCL makes: then its members tell each other their world ranks.
struct NewCommunicator {
  ncclComm_t* place = nullptr;  ///< NCCL writes it, at the latest when the call has taken effect
  ncclComm_t polled = nullptr;  ///< its parent, which the program asks whether the call has taken effect; or null
  std::shared_ptr<RankLosses> losses;  ///< of the parent; null: without one
};

/// One per process, where DROPTEST_NETWORK is set. NCCL's functions have no argument that could name it.
/// Thread safety: all methods may be called from any thread at once; groups are the calling thread's, as NCCL's are.
/// Throws: ConfigError and DeviceError that name the rank.
class Interposer {
 public:
  /// Null where DROPTEST_NETWORK is not set or empty, and in a forked child of a process that has called it: all calls
  /// are passed on.
  static Interposer* get();

  /// Before a rank joins a communicator: reads the file of DROPTEST_NETWORK, so that a mistake in it is an error before
  /// any rank waits for another.
  void check_network(int rank, int ranks);
  /// After the call that makes communicators, which has returned `result`. Returns the result for the program.
  ncclResult_t made(std::vector<NewCommunicator> made, ncclResult_t result);
  /// After a query of a communicator, which has returned `state`: goes on with what waits for it. Returns the state for
  /// the program.
  ncclResult_t queried(ncclComm_t comm, ncclResult_t state);
  /// Before a communicator is destroyed: waits for its device, writes the counts of its rank, and forgets it.
  void ends(ncclComm_t comm);
  /// What a communicator had. NCCL's work may use its memory, and freeing it waits for that work.
  struct Forgotten {
    std::shared_ptr<Member> member;  ///< null: the communicator is unknown
    std::vector<std::shared_ptr<const void>> exchanges;
  };
  Forgotten forget(ncclComm_t comm);
  /// At the end of the process, when its work is done: for communicators that were not destroyed.
  void write_all_counts();

  /// The calling rank's membership. Throws: ConfigError for a communicator that was made by a function which this
  /// library does not know: it would lose nothing.
  std::shared_ptr<Member> member(ncclComm_t comm);

  void group_started();
  /// After NCCL's own ncclGroupEnd(). Returns the result for the program.
  ncclResult_t group_ended(ncclResult_t result);
  /// After NCCL's own ncclGroupSimulateEnd(), which puts no work on streams.
  void group_simulated();
  bool in_group() const;
  /// Member::scratch(), until the group that is open now ends.
  void* scratch(const std::shared_ptr<Member>& member, const NcclCall& call, std::size_t bytes);
  /// After the call of NCCL that `fill` belongs to, which has returned `result`.
  void lose_after(ncclComm_t comm, const std::shared_ptr<Member>& member, const Fill& fill, ncclResult_t result);

 private:
  struct Waiting {
    ncclComm_t comm = nullptr;
    std::shared_ptr<Member> member;  // shared with members_: it may be forgotten first
    Fill fill;
  };
  // The exchange of identities over a new communicator.
  class Exchange;
  struct OpenGroup {
    int depth = 0;
    std::vector<NewCommunicator> made;
    std::vector<Waiting> fills;
    std::vector<std::shared_ptr<Member>> members;  // with scratch in use
  };
  static OpenGroup& open_group();

  ncclResult_t introduce(std::vector<NewCommunicator> made);
  void add(const Exchange& exchange);
  std::shared_ptr<RankLosses> losses_of(int rank, int world_size);

  std::mutex mutex_;
  bool network_is_checked_ = false;
  std::map<ncclComm_t, std::shared_ptr<Member>> members_;
  std::map<int, std::shared_ptr<RankLosses>> losses_;  // by world rank; kept until the process ends
  std::set<ncclComm_t> non_blocking_;                  // of members_
  std::vector<NewCommunicator> being_made_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;  // of communicators that do not block
  std::vector<Waiting> waiting_;                      // for calls of such communicators to take effect
};

}  // namespace droptest::nccl_shim
