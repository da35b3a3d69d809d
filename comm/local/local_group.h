// SPDX-License-Identifier: Apache-2.0
// Where the threads of one process meet: the state that the ranks of a world and of its groups share.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/call.h"
#include "comm/communicator.h"

namespace droptest::comm {

class LocalGroup;

/// All ranks of one run: the failure that they share, and who waits where.
/// Thread safety: all methods may be called from any thread. Shared by the ranks' communicators and by run_ranks(), so
/// that a rank that is left behind never touches freed memory.
class LocalWorld {
 public:
  /// Throws: ConfigError unless world_size and timeout are positive.
  LocalWorld(int world_size, std::chrono::milliseconds timeout);

  int size() const { return static_cast<int>(ranks_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// `world_rank` gives up for `reason`; the first failure of the world stands, later ones are echoes.
  void abort(int world_rank, std::string_view reason);
  /// `world_rank` makes no calls any more: who waits for it fails at once.
  void end(int world_rank);
  std::optional<Failure> failure() const;

 private:
  friend class LocalGroup;

  /// A rank inside a call that waits for others.
  struct Wait {
    const LocalGroup* group = nullptr;  ///< null: not waiting
    int peer = -1;                      ///< group rank of the sender that a recv waits for; -1: whoever has not arrived
    Call call;
  };
  struct Rank {
    std::condition_variable wake;
    Wait wait;
    bool ended = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  void fail(const Lock& lock, Failure failure);
  [[noreturn]] void throw_failure(const Lock& lock, const Call& call, int world_rank) const;
  /// Waits as `wait` says until done() or until the group can be given up; throws CommError then.
  template <class Done>
  void wait_until(Lock& lock, int world_rank, const Wait& wait, const Done& done);
  std::vector<int> awaited(const Wait& wait) const;
  Failure stalled(int world_rank, const Wait& wait) const;

  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::deque<Rank> ranks_;  ///< a deque, because condition variables do not move
  std::optional<Failure> failure_;
};

/// What a rank shows to the others while a collective runs. The pointers are valid from arrive() to leave().
struct LocalCall {
  Call call{};
  ConstTensor input{};
  Tensor output{};
  std::span<const std::uint64_t> send_counts{};     ///< all_to_all
  std::span<const std::uint64_t> receive_counts{};  ///< all_to_all
  int color = 0;                                    ///< split
  int key = 0;                                      ///< split
};

/// The ranks of one communicator.
class LocalGroup {
 public:
  /// `world` is shared by all groups over its ranks.
  LocalGroup(std::shared_ptr<LocalWorld> world, std::vector<int> world_ranks);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  int world_rank(int rank) const { return world_ranks_[static_cast<std::size_t>(rank)]; }
  LocalWorld& world() const { return *world_; }

  /// Waits until every rank of the group is here with a call that agrees. Afterwards the calls of all may be read until
  /// leave(). Throws: CommError, on every rank, where one fails, ends, calls something else or does not come in time.
  void arrive(int rank, const LocalCall& call);
  const LocalCall& call_of(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }
  /// Waits until every rank has read and written what it needs.
  void leave(int rank);

  /// Between arrive() and leave() of a split: the new group of that color, the same one for all its ranks.
  std::shared_ptr<LocalGroup> part_of(int color);

  /// Leaves a copy of the data for `destination`; never waits.
  void post(int source, int destination, const LocalCall& call);
  /// Waits for the next message of `source`. Throws: CommError where it is not the one that `call` names.
  void take(int source, int destination, const LocalCall& call);

 private:
  friend class LocalWorld;

  struct Posted {
    Call call;
    std::vector<std::byte> bytes;
  };

  std::vector<int> missing() const;  ///< world ranks that have not arrived
  std::string disagreement() const;  ///< empty where all calls agree
  void wake_others(int rank) const;

  std::shared_ptr<LocalWorld> world_;
  const std::vector<int> world_ranks_;
  // All of the following is guarded by the world's mutex; calls_ also by the protocol of arrive() and leave().
  std::vector<LocalCall> calls_;
  std::vector<bool> arrived_;
  int arrived_count_ = 0;
  int left_count_ = 0;
  std::uint64_t arrivals_ = 0;    ///< how often all have arrived
  std::uint64_t departures_ = 0;  ///< how often all have left
  std::map<std::pair<int, int>, std::deque<Posted>> posted_;
  std::map<int, std::weak_ptr<LocalGroup>> parts_;  ///< of the split that is going on, by color
};

}  // namespace droptest::comm
