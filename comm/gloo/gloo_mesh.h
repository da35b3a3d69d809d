// SPDX-License-Identifier: Apache-2.0
// One process's connections to all others, and the failure that the processes share.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
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
#include "comm/rendezvous/launch_store.h"
#include "comm/rendezvous/sigpipe_blocked.h"

namespace gloo::rendezvous {
class Context;
}
namespace gloo::transport {
class UnboundBuffer;
}

namespace droptest::comm {

/// Gloo's message without the place in its source that it begins with: "[/path/pair.cc:598] Connection closed by peer".
std::string without_gloo_place(const std::string& message);

/// A full mesh of TCP connections. All errors end the whole mesh: the first cause that any rank finds is written to the
/// launch store before connections close, and every rank reports that one. A thread of the mesh watches the store and
/// the deadline of the wait that goes on, so that ranks learn of failures between third parties, and none waits for
/// ever. Thread safety: one thread makes calls; abort() may be called from any.
class GlooMesh {
 public:
  /// Throws: ConfigError for options that are wrong, or a launch id that was used before; CommError that names the
  /// ranks that did not come within the timeout.
  explicit GlooMesh(const ProcessGroupOptions& options);
  /// Waits, at most for the timeout, until buffered sends are taken; tells the others that this rank left.
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Marks the time in which this rank is inside `call`. Throws: CommError where the mesh has failed.
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

  /// Bytes on their way from or to one peer. The memory must stay until the transfer is finished or the mesh failed.
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

  /// Sends a copy of `bytes`, and waits only where too much is under way already.
  void send_buffered(std::vector<std::byte> bytes, int peer, std::uint64_t slot);

  /// Ends the mesh for `cause`, unless it failed before; throws what it failed for.
  [[noreturn]] void fail(const std::string& cause);
  /// Ends the mesh because this rank gives up.
  void abort(std::string_view reason) noexcept;

  /// Names groups: ids of all groups that share a pair of ranks differ.
  std::uint16_t next_group_id = 1;
  std::uint64_t step = 0;

 private:
  struct Wait {
    Transfer* transfer = nullptr;  ///< null: not waiting
    std::chrono::steady_clock::time_point deadline;
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
  void interrupt_wait();
  void wait_for(Transfer& transfer);
  void close_connections() noexcept;
  // In gloo_mesh_failure.cc.
  std::optional<Failure> posted_failure();
  std::optional<Failure> lost_rank() const;
  bool stall_is_asked_about();
  Failure settle(const Failure& found);
  void post_status();
  Failure connection_lost(int peer, const std::string& reason);
  Failure stalled(int peer);
  [[noreturn]] void end_with(const Failure& found);
  [[noreturn]] void throw_failure();

  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<LaunchStore> store_;
  std::shared_ptr<gloo::rendezvous::Context> context_;  ///< shared with Gloo's own objects
  std::deque<Buffered> buffered_;
  std::size_t buffered_bytes_ = 0;

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::optional<Call> call_;
  Wait wait_;
  bool status_posted_ = false;
  bool stop_ = false;
  bool closed_ = false;
  std::thread watcher_;
};

}  // namespace droptest::comm
