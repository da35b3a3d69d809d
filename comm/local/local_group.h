// SPDX-License-Identifier: Apache-2.0
// The shared state of the ranks of a world and of its groups, for threads of one process.
#pragma once

#include <array>
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
class LocalMeeting;

/// All ranks of one run: their common failure, and the waits of each rank. Thread safety: all methods may be called
/// from any thread. The ranks' communicators and run_ranks() share it, so that a rank that is left behind never touches
/// freed memory.
class LocalWorld {
 public:
  /// The clock, which measures the timeout, is borrowed. Throws: ConfigError unless world_size and timeout are
  /// positive.
  LocalWorld(int world_size, std::chrono::milliseconds timeout, const Clock& clock = steady_clock());

  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Tells the others that `world_rank` gives up for `reason`. The world keeps its first failure.
  void abort(int world_rank, std::string_view reason);
  /// Tells the others that `world_rank` makes no more calls: a rank that waits for it fails at once.
  void end(int world_rank);
  std::optional<Failure> failure() const;

 private:
  friend class LocalGroup;

  /// A rank inside a call that waits for others.
  struct Wait {
    const LocalGroup* group = nullptr;  ///< null: not waiting
    /// The meeting whose missing ranks it waits for; null: it waits for a message.
    const LocalMeeting* meeting = nullptr;
    int peer = -1;  ///< group rank of the sender of the awaited message
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
  /// Adds threads for ranks that wait in groups with threads of their own; returns the place of rank 0's thread.
  std::size_t add_threads(const Lock& lock);
  /// Records the wait of a thread; the deadline counts from here.
  Deadline begin_wait(const Lock& lock, Rank& thread, const Wait& wait);
  /// Waits as recorded by begin_wait() until done() or until the group fails; throws CommError then.
  template <class Done>
  void wait_until(Lock& lock, Rank& thread, int world_rank, Deadline deadline, const Done& done);
  std::vector<int> awaited(const Wait& wait) const;
  int ended_rank(const Wait& wait) const;  ///< an awaited rank that has ended; -1: none
  Failure stalled(int world_rank, const Wait& wait) const;

  const int size_;
  const std::chrono::milliseconds timeout_;
  const Clock& clock_;
  const int cores_;
  mutable std::mutex mutex_;
  /// The ranks' own threads, then the threads of each group with other threads. A deque, because condition variables do
  /// not move.
  std::deque<Rank> ranks_;
  std::optional<Failure> failure_;
  std::atomic<bool> needs_attention_ =
      false;  ///< whether there was a failure or a rank has ended: for ranks that poll without the mutex
};

/// The arguments of a rank's call, which the others read while a collective runs. The pointers are valid until the rank
/// has left the collective.
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
  /// Runs the share: it may read and write the shown arguments of all ranks of the group. Runs on the thread of any
  /// rank of the group, while its own rank may do other work: it must not call a communicator, nor wait.
  virtual void run(LocalMeeting& meeting) = 0;
};

/// One collective of a group: its n-th for all ranks. The world's mutex guards it, except the shown arguments, which
/// shares read, and the two flags, which ranks poll before they sleep.
class LocalMeeting {
 public:
  explicit LocalMeeting(int size);

  /// The shown arguments of a rank, while shares run.
  const LocalCall& call_of(int rank) const { return calls_[static_cast<std::size_t>(rank)]; }

 private:
  friend class LocalGroup;
  friend class LocalWorld;
  void start_over();

  std::vector<LocalCall> calls_;
  std::vector<LocalShare*> shares_;
  std::vector<std::exception_ptr> thrown_;  ///< exceptions by share
  std::vector<bool> arrived_;
  int arrived_count_ = 0;
  int left_count_ = 0;
  std::size_t next_share_ = 0;          ///< the first share that no rank has begun
  std::size_t shares_left_ = 0;         ///< shares that have not finished
  std::atomic<bool> started_ = false;   ///< whether all ranks have arrived
  std::atomic<bool> finished_ = false;  ///< whether all shares have run
  bool share_has_thrown_ = false;
  std::map<int, std::weak_ptr<LocalGroup>> parts_;  ///< groups of a split, by color
};

/// The ranks of one communicator.
class LocalGroup {
 public:
  /// `world` is shared by all groups over its ranks. Called under the world's mutex, or before its ranks have begun.
  LocalGroup(std::shared_ptr<LocalWorld> world, std::vector<int> world_ranks);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  int world_rank(int rank) const { return world_ranks_[static_cast<std::size_t>(rank)]; }
  LocalWorld& world() const { return *world_; }

  /// Joins this rank's next collective. `call` and `share` belong to the rank, and stay until it has left. Null share:
  /// the rank has no work. Throws: CommError if the world has failed, or, for the last rank to join, if calls differ.
  LocalMeeting& join(int rank, const LocalCall& call, LocalShare* share);
  /// Waits until every rank of the group has joined and each rank's share has run once; then leaves. Shares run on the
  /// ranks' threads that are awake, so a rank need not be woken before the end of the collective. Throws: CommError if
  /// a rank fails, ends, makes another call or does not join in time. A share that throws fails the world, after all
  /// other shares have run: its own rank gets the exception, the others a CommError that names it. Afterwards, thrown
  /// or not, no rank reads this rank's call and share.
  void finish(int rank, LocalMeeting& meeting);
  /// Whether finish() would not wait; runs shares that no rank has begun.
  bool finished(LocalMeeting& meeting);
  /// join() and finish(), with fewer ranks woken.
  void meet(int rank, const LocalCall& call, LocalShare* share);

  /// The group of the same ranks for calls of their other threads, by number of the channel.
  std::shared_ptr<LocalGroup> channel(int number);

  /// The new group of that color, the same one for all its ranks. Called while the shares of a split run.
  std::shared_ptr<LocalGroup> part_of(LocalMeeting& meeting, int color);

  /// The points in a rank's stream between which other ranks use its tensors in a collective on a device. The rank
  /// makes them at its first such collective; the others use them in and after meet().
  struct DevicePoints {
    Event arrived;  ///< the rank's tensors hold its contribution
    Event done;     ///< the work of its share is done
  };
  DevicePoints& device_points(int rank);

  /// Leaves a copy of the data for `destination`; never waits.
  void post(int source, int destination, const LocalCall& call);
  /// The number of the message that the next receive from `source` gets.
  std::uint64_t next_receive(int source, int destination);
  /// Waits for the message of that number. Throws: CommError if it does not match `call`.
  void take(int source, int destination, std::uint64_t number, const LocalCall& call);
  /// Whether take() would not wait.
  bool has_come(int source, int destination, std::uint64_t number);

 private:
  friend class LocalWorld;

  /// From now on, ranks make calls from the threads at that place. Called under the mutex, or before the ranks have
  /// begun.
  void use_threads(std::size_t first);
  LocalWorld::Rank& thread(int rank) const { return *threads_[static_cast<std::size_t>(rank)]; }

  // A message in device memory, reused after its receiver has copied it.
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
  // The messages of one rank to another one.
  struct Mailbox {
    std::deque<std::optional<Posted>> posted;  ///< empty: taken before an earlier one
    std::uint64_t first = 0;                   ///< number of the first message in `posted`
    std::uint64_t receives = 0;                ///< receives so far
    bool has(std::uint64_t number) const { return number < first + posted.size(); }
  };
  std::unique_ptr<DevicePost> device_post(std::size_t bytes, Stream& stream);

  std::vector<int> missing(const LocalMeeting& meeting) const;  ///< world ranks that have not arrived
  std::string disagreement(const LocalMeeting& meeting) const;  ///< empty if all calls agree
  LocalMeeting& join(const LocalWorld::Lock& lock, int rank, const LocalCall& call, LocalShare* share);
  void finish(LocalWorld::Lock& lock, int rank, LocalMeeting& meeting);
  void run_shares(LocalWorld::Lock& lock, LocalMeeting& meeting);
  void run_share(LocalWorld::Lock& lock, LocalMeeting& meeting, std::size_t rank);
  bool end_if_done(LocalMeeting& meeting);
  void leave(const LocalWorld::Lock& lock, LocalMeeting& meeting);
  void wake_after(int rank, int count) const;
  template <class Seen>
  void look_out(LocalWorld::Lock& lock, const Seen& seen) const;

  std::shared_ptr<LocalWorld> world_;
  const std::vector<int> world_ranks_;
  // The world's mutex guards all members below.
  std::deque<std::unique_ptr<LocalMeeting>> meetings_;  ///< meetings that not all ranks have left yet, in order
  std::uint64_t first_meeting_ = 0;                     ///< number of the first meeting in the list
  bool looks_out_ = true;                               ///< whether a rank polls before it sleeps
  std::size_t first_thread_ = 0;                        ///< place of rank 0's thread among those that make calls here
  std::vector<LocalWorld::Rank*> threads_;              ///< threads by rank; read without the mutex
  std::array<std::shared_ptr<LocalGroup>, Communicator::kMostChannels> channels_;
  std::vector<std::uint64_t> next_meeting_;  ///< number of the next meeting by rank
  std::vector<std::unique_ptr<LocalMeeting>> spare_meetings_;
  std::map<std::pair<int, int>, Mailbox> mail_;           ///< messages by source and destination
  std::vector<std::unique_ptr<DevicePost>> taken_posts_;  ///< posts that may be used again
  /// Points by rank; null until its first device collective.
  std::vector<std::unique_ptr<DevicePoints>> device_points_;
};

}  // namespace droptest::comm
