// SPDX-License-Identifier: Apache-2.0
// The NCCL communicators of one rank: made, used and given back so that no call waits for ever. For sources that see
// NCCL's header anyway.
#pragma once

#include <nccl.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/call.h"
#include "comm/gloo/gloo_mesh.h"
#include "comm/watchdog.h"

namespace droptest::comm {

/// What the ranks of a new NCCL communicator know it by, in words of host memory.
using NcclId = std::array<std::uint64_t, NCCL_UNIQUE_ID_BYTES / sizeof(std::uint64_t)>;

/// All communicators of a rank, on one device. They are made non-blocking: each call is handed to NCCL and asked after
/// until NCCL has taken it, or the timeout has passed, or the group has failed. What a failure ends is never touched
/// again, whichever thread ends it.
/// Thread safety: one thread makes calls; the watchdog calls the rest.
class NcclHandles final : public WatchedTransport {
 public:
  /// `mesh` is shared with the rank's communicators: failures of either end both.
  NcclHandles(std::shared_ptr<GlooMesh> mesh, int device, std::chrono::milliseconds timeout)
      : mesh_(std::move(mesh)), device_(device), timeout_(timeout) {}

  struct Made {
    ncclComm_t comm = nullptr;
    std::optional<Failure> failure;  ///< null, or why there is no communicator
  };
  /// Ranks: all of the mesh, with the id that one of them made.
  Made connect(const NcclId& id);
  /// Null for NCCL_SPLIT_NOCOLOR. Ranks: all of `parent`, which has nothing under way.
  Made split(ncclComm_t parent, int color, int key);

  /// Makes a call, or a group of calls, that puts work of `comm` on streams, and returns when it is there. Returns why it
  /// is not, where the group must be ended for that or is ended already.
  std::optional<Failure> run(ncclComm_t comm, const Call& call, const std::vector<int>& world_ranks,
                             const std::function<ncclResult_t()>& enqueue);

  /// Gives a communicator back when its work is done. Returns what went wrong, where the group must be ended for that.
  std::optional<Failure> close(ncclComm_t comm);

  std::optional<Failure> failure() override;
  Failure explain_stall(const Call& call, const std::vector<int>& world_ranks) override;
  Failure device_failure(const Call& call, const std::string& reason) override;
  void end(const Failure& failure) noexcept override;

 private:
  struct Live {
    ncclComm_t comm;
    bool ready;  ///< false: being made, and watched by who makes it
  };

  /// Asks until the result of the last call on `comm` is known. Null: the group has ended, or the time is over.
  std::optional<ncclResult_t> await(ncclComm_t comm, ncclResult_t result);
  void add(ncclComm_t comm);
  Made made(ncclComm_t comm, ncclResult_t result, const Call& call, const std::vector<int>& world_ranks);
  Failure failed(const Call& call, const std::string& text);
  std::string name() const;

  const std::shared_ptr<GlooMesh> mesh_;
  const int device_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;  ///< held during each call of NCCL except the last, which ends everything
  std::vector<Live> live_;
  bool ended_ = false;
};

}  // namespace droptest::comm
