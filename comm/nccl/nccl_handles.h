// SPDX-License-Identifier: Apache-2.0
// The NCCL communicators of one rank: made, used and given back so that no call waits for ever. For sources that
// include NCCL's header anyway.
#pragma once

#include <nccl.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/call.h"
#include "comm/gloo/gloo_mesh.h"
#include "comm/watchdog.h"

namespace droptest::comm {

/// The id by which the ranks of a new NCCL communicator find each other, as words of host memory.
using NcclId = std::array<std::uint64_t, NCCL_UNIQUE_ID_BYTES / sizeof(std::uint64_t)>;

/// All NCCL communicators of a rank, on one device. They are non-blocking: a call is handed to NCCL, which is then
/// polled until it has accepted the call, the timeout has passed, or the group has failed. After a failure, no thread
/// touches the ended communicators again. Thread safety: one thread makes calls; the methods of WatchedTransport are
/// the watchdog's.
class NcclHandles final : public WatchedTransport {
 public:
  /// `mesh` is shared with the rank's communicators: a failure of either ends both.
  NcclHandles(std::shared_ptr<GlooMesh> mesh, int device, std::chrono::milliseconds timeout)
      : mesh_(std::move(mesh)), device_(device), timeout_(timeout) {}

  struct Made {
    ncclComm_t comm = nullptr;
    std::optional<Failure> failure;  ///< the reason if there is no communicator
  };
  /// Ranks: all of the mesh, with the id that one of them made.
  Made connect(const NcclId& id);
  /// The result has no communicator for NCCL_SPLIT_NOCOLOR. Ranks: all of `parent`, which has no work under way.
  Made split(ncclComm_t parent, const std::vector<int>& world_ranks, int color, int key);

  /// Makes a call, or a group of calls, that puts work of `comm` on streams, and returns when the work is there. If it
  /// returns a failure, the group must be ended, or has been.
  std::optional<Failure> run(ncclComm_t comm, const Call& call, const std::vector<int>& world_ranks,
                             const std::function<ncclResult_t()>& enqueue);

  /// Waits until the work of `comm` is done on all its ranks, and gives it back. Returns a failure as run() does.
  std::optional<Failure> close(ncclComm_t comm, const std::vector<int>& world_ranks);

  std::optional<Failure> failure() override;
  Failure explain_stall(const Call& call, const std::vector<int>& world_ranks) override;
  Failure device_failure(const Call& call, const std::string& reason) override;
  void end(const Failure& failure) noexcept override;

 private:
  struct Live {
    ncclComm_t comm;
    bool ready;  ///< false: it is being made or closed, and the thread that does so watches it
  };
  /// The result of a call. If there is a failure, the reason why NCCL's result is missing, `result` means nothing.
  struct Outcome {
    ncclResult_t result = ncclSuccess;
    std::optional<Failure> failure;
  };

  Outcome await(ncclComm_t comm, ncclResult_t result, std::string_view doing, const std::string& context,
                const std::vector<int>& world_ranks);
  void set_ready(ncclComm_t comm, bool ready);
  Failure stalled(std::string_view doing, const std::string& context, const std::vector<int>& world_ranks);
  Failure failed(std::string_view doing, const std::string& text);

  const std::shared_ptr<GlooMesh> mesh_;
  const int device_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;  ///< held during each call of NCCL except the last, which ends everything
  std::vector<Live> live_;
  bool ended_ = false;
  std::deque<ncclComm_t> parts_;  ///< NCCL writes the results of splits there
};

}  // namespace droptest::comm
