// SPDX-License-Identifier: Apache-2.0
// Where the threads of one process meet: the state that the ranks of a world and of its groups share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
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
#include "comm/clock.h"
#include "comm/communicator.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"
#include "comm/part_reduction.h"

namespace droptest::comm {

class LocalGroup;

/// All ranks of one run: the failure that they share, and who waits where.
/// Thread safety: all methods may be called from any thread. Shared by the ranks' communicators and by run_ranks(), so
/// that a rank that is left behind never touches freed memory.
class LocalWorld {
 public:
  /// The clock, which the timeout is measured by, is borrowed. Throws: ConfigError unless world_size and timeout are
  /// positive.
  LocalWorld(int world_size, std::chrono::milliseconds timeout, const Clock& clock = steady_clock());

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
  using Deadline = Clock::TimePoint;

  void fail(const Lock& lock, Failure failure);
  [[noreturn]] void throw_failure(const Lock& lock, const Call& call, int world_rank) const;
  /// Says what the rank waits for; the deadline counts from here.
  Deadline begin_wait(const Lock& lock, int world_rank, const Wait& wait);
  /// Waits as begin_wait() has said until done() or until the group can be given up; throws CommError then.
  template <class Done>
  void wait_until(Lock& lock, int world_rank, Deadline deadline, const Done& done);
  std::vector<int> awaited(const Wait& wait) const;
  int ended_rank(const Wait& wait) const;  ///< one that is awaited but has ended; -1: none
  std::condition_variable& wake_of(int world_rank) { return ranks_[static_cast<std::size_t>(world_rank)].wake; }
  Failure stalled(int world_rank, const Wait& wait) const;

  const std::chrono::milliseconds timeout_;
  const Clock& clock_;
  const int cores_;
  mutable std::mutex mutex_;
  std::deque<Rank> ranks_;  ///< a deque, because condition variables do not move
  std::optional<Failure> failure_;
  std::atomic<bool> needs_attention_ =
      false;  ///< a failure, or a rank has ended: for ranks that look without the mutex
};

/// What a rank shows to the others while a collective runs. The pointers are valid while the rank is in meet().
struct LocalCall {
  Call call{};
  ConstTensor input{};
  Tensor output{};
  std::span<const std::uint64_t> send_counts{};     ///< all_to_all
  std::span<const std::uint64_t> receive_counts{};  ///< all_to_all
  const PartReduction* reduction = nullptr;         ///< all_reduce_with, reduce_scatter_with
  int color = 0;                                    ///< split
  int key = 0;                                      ///< split
};

/// One rank's share of a collective, done when all ranks have arrived.
class LocalShare {
 public:
  virtual ~LocalShare() = default;
  /// May read and write what all ranks of the group show. Runs on the thread of any rank of the group, while its own
  /// rank waits: it must not call a communicator, nor wait for anything else.
  virtual void run() = 0;
};

/// The ranks of one communicator.
class LocalGroup {
 public:
  /// `world` is shared by all groups over its ranks.
  LocalGroup(std::shared_ptr<LocalWorld> world, std::vector<int> world_ranks);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  int world_rank(int rank) const { return world_ranks_[static_cast<std::size_t>(rank)]; }
  LocalWorld& world() const { return *world_; }

  /// Waits until every rank of the group is here with a call that agrees, and returns when each rank's share has run
  /// once. Null: a rank that has nothing to do. Shares run on whichever of the ranks' threads are awake, so that a rank
  /// need not be woken before the collective is over. Throws: CommError, on every rank, where one fails, ends, calls
  /// something else or does not come in time. A share that throws fails the world: its own rank gets the exception,
  /// the others a CommError that names it, when all other shares have run.
  void meet(int rank, const LocalCall& call, LocalShare* share);
  /// What a rank shows, while shares run.
  const LocalCall& call_of(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }

  /// While the shares of a split run: the new group of that color, the same one for all its ranks.
  std::shared_ptr<LocalGroup> part_of(int color);

  /// The points in a rank's stream between which others use its tensors in a collective on a device. Made by the rank
  /// itself when it first calls one; the others use it in and after meet().
  struct DevicePoints {
    Event arrived;  ///< the rank's tensors hold what it contributes
    Event done;     ///< its share of the work has been done
  };
  DevicePoints& device_points(int rank);

  /// Leaves a copy of the data for `destination`; never waits.
  void post(int source, int destination, const LocalCall& call);
  /// Waits for the next message of `source`. Throws: CommError where it is not the one that `call` names.
  void take(int source, int destination, const LocalCall& call);

 private:
  friend class LocalWorld;

  // A message in device memory. It is used again when its receiver has copied it.
  struct DevicePost {
    DeviceMemory memory;
    Event ready;
    Event taken;
  };
  struct Posted {
    Call call;
    std::vector<std::byte> bytes;
    std::unique_ptr<DevicePost> on_device;  ///< null: in host memory
  };
  std::unique_ptr<DevicePost> device_post(std::size_t bytes, Stream& stream);

  std::vector<int> missing() const;  ///< world ranks that have not arrived
  std::string disagreement() const;  ///< empty where all calls agree
  void start(LocalWorld::Lock& lock, int rank);
  void run_shares(LocalWorld::Lock& lock);
  void run_share(LocalWorld::Lock& lock, std::size_t rank);
  void wake_after(int rank, int count) const;
  template <class Seen>
  void look_out(LocalWorld::Lock& lock, const Seen& seen) const;

  std::shared_ptr<LocalWorld> world_;
  const std::vector<int> world_ranks_;
  // All of the following is guarded by the world's mutex; calls_ also by the protocol of meet().
  std::vector<LocalCall> calls_;
  std::vector<LocalShare*> shares_;
  std::vector<std::exception_ptr> thrown_;  ///< by shares
  std::vector<bool> arrived_;
  int arrived_count_ = 0;
  std::size_t next_share_ = 0;   ///< of the meeting that goes on: the first one that nobody has begun
  std::size_t shares_left_ = 0;  ///< that have not been finished
  // Written under the mutex as all else here; read without it by ranks that have not gone to sleep yet.
  std::atomic<std::uint64_t> started_ = 0;   ///< meetings that all have come to
  std::atomic<std::uint64_t> finished_ = 0;  ///< meetings whose shares have all run
  bool share_has_thrown_ = false;            ///< stays: the world has failed
  std::map<std::pair<int, int>, std::deque<Posted>> posted_;
  std::vector<std::unique_ptr<DevicePost>> taken_posts_;      ///< to be used again
  std::vector<std::unique_ptr<DevicePoints>> device_points_;  ///< by rank; null until its first device collective
  std::map<int, std::weak_ptr<LocalGroup>> parts_;            ///< of the split that is going on, by color
};

}  // namespace droptest::comm
