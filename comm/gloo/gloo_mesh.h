// SPDX-License-Identifier: Apache-2.0
// One process's connections to all others, and the failure that the processes share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/backend_registry.h"
#include "comm/call.h"
#include "comm/clock.h"
#include "comm/rendezvous/launch_store.h"
#include "comm/rendezvous/sigpipe_blocked.h"

namespace gloo::rendezvous {
class Context;
}
namespace gloo::transport {
class UnboundBuffer;
}

namespace droptest::comm {

/// Gloo's message without the source location at its begin. Example of a location: "[/path/pair.cc:598]".
std::string without_gloo_place(const std::string& message);

/// A full mesh of TCP connections. All errors end the whole mesh: the first cause that any rank finds is written to the
/// launch store before connections close, and every rank reports that one. A thread of the mesh watches the store and
/// the deadlines of the current waits. So ranks learn of failures between third parties, and no rank waits for ever. A
/// backend that moves its data elsewhere shares its failures through a mesh, too. Thread safety: any thread may make
/// calls, each in a CallScope of its own; split groups belong to the rank's thread.
class GlooMesh {
 public:
  /// Throws: ConfigError for options that are wrong, or a launch id that was used before; CommError that names the
  /// ranks that did not come within the timeout.
  explicit GlooMesh(const ProcessGroupOptions& options);
  /// Waits, at most for the timeout, until buffered sends are received; tells the others that this rank left.
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The clock of all timeouts.
  const Clock& clock() const { return clock_; }

  /// Marks the time that this thread of the rank spends in `call`. Throws: CommError if the mesh has failed.
  class CallScope {
   public:
    CallScope(GlooMesh& mesh, const Call& call);
    ~CallScope();
    CallScope(const CallScope&) = delete;
    CallScope& operator=(const CallScope&) = delete;

   private:
    const SigpipeBlocked sigpipe_blocked_;
    GlooMesh& mesh_;
  };

  /// Bytes under way from or to one peer. The memory must stay until the transfer is finished or the mesh failed.
  class Transfer {
   public:
    Transfer(Transfer&&) noexcept;
    Transfer& operator=(Transfer&&) noexcept;
    ~Transfer();

   private:
    friend class GlooMesh;
    enum class Direction : std::uint8_t { kSend, kReceive };
    Transfer(Direction direction, int peer, std::unique_ptr<gloo::transport::UnboundBuffer> buffer);
    Direction direction_;
    int peer_;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  };

  /// Peers are world ranks other than this one. Slots match a send with its receive; each is used once per pair and
  /// direction. Ranks: inside a CallScope. Throws: CommError.
  Transfer start_send(std::span<const std::byte> bytes, int peer, std::uint64_t slot);
  Transfer start_receive(std::span<std::byte> bytes, int peer, std::uint64_t slot);
  void finish(Transfer& transfer);

  /// Sends a copy of `bytes`; waits only if too many bytes are under way already.
  void send_buffered(std::vector<std::byte> bytes, int peer, std::uint64_t slot);

  /// Ends the mesh for `cause`, unless it failed before; throws the failure of the mesh.
  [[noreturn]] void fail(const std::string& cause);
  /// Ends the mesh because this rank gives up.
  void abort(std::string_view reason) noexcept;

  /// The failure of the mesh, as far as this rank knows. Never waits.
  std::optional<Failure> failure();
  /// Ends the mesh for a failure that this rank found outside of it; returns the failure that was found first.
  Failure end(const Failure& found) noexcept;
  /// Sets the function that gives this rank's answer when the other ranks ask for its activity outside of the mesh's
  /// calls; "": none. The mesh's thread calls the function, which must not call the mesh. Empty: no function.
  void report_activity(std::function<std::string()> activity);
  /// The answers of all ranks about their activity, when an operation outside of the mesh makes no progress.
  struct Roll {
    std::vector<int> left;           ///< ranks that ended in order
    std::vector<int> silent;         ///< ranks that do not answer within a second
    std::vector<int> idle;           ///< ranks that are in no call, and have nothing under way
    std::string doing;               ///< calls of the other ranks: "rank 1: all_reduce(...); rank 3: barrier(...)"
    std::optional<Failure> failure;  ///< failure found by another rank meanwhile; then the rest is empty
  };
  /// Takes up to a few seconds. Throws: CommError if the launch store is gone.
  Roll call_roll();

  /// The next id of a group. Ids of all groups that share a pair of ranks differ.
  std::uint16_t next_group_id = 1;
  std::atomic<std::uint64_t> step = 0;

 private:
  struct Wait {
    Transfer* transfer;
    Call call;
    Clock::TimePoint deadline;
    bool timed_out = false;
  };
  struct Buffered {
    std::vector<std::byte> bytes;
    Transfer transfer;
  };

  void check_options(const ProcessGroupOptions& options) const;
  void meet(std::string_view stage, std::string_view verb);
  void connect(const std::string& interface_name);
  void watch();
  static void interrupt(const Wait& wait);
  void interrupt_waits() const;
  Call call_of_this_thread() const;
  void close_connections() noexcept;
  // These functions are in gloo_mesh_failure.cc.
  std::optional<Failure> posted_failure();
  std::optional<Failure> lost_rank() const;
  bool stall_is_asked_about();
  Failure settle(const Failure& found);
  void post_status();
  /// The activity that each rank reports, absent for ranks that do not answer; and the failure of the mesh, if there is
  /// one.
  struct Answers {
    std::vector<std::optional<std::string>> of_rank;
    std::optional<Failure> posted;
  };
  Answers ask_all();
  Failure connection_lost(int peer, const std::string& reason);
  Failure stalled(int peer);
  [[noreturn]] void end_with(const Failure& found);
  [[noreturn]] void throw_failure();

  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  const Clock& clock_;
  std::unique_ptr<LaunchStore> store_;
  std::shared_ptr<gloo::rendezvous::Context> context_;  ///< shared with Gloo's own objects
  std::mutex buffered_mutex_;                           ///< guards the buffered messages
  std::deque<Buffered> buffered_;
  std::size_t buffered_bytes_ = 0;

  std::mutex mutex_;  ///< guards the members below
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::map<std::thread::id, Call> calls_;  ///< the calls of this rank's threads
  std::function<std::string()> activity_;
  std::list<Wait> waits_;  ///< waits of this rank, the oldest one first
  bool status_posted_ = false;
  bool stop_ = false;
  bool closed_ = false;
  std::thread watcher_;
};

}  // namespace droptest::comm
