// SPDX-License-Identifier: Apache-2.0
// The ranks of one communicator of the test double, and the matching of their operations.
#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_nccl/fake_nccl.h"

namespace droptest::fake_nccl {

enum class Kind : std::uint8_t { kAllReduce, kReduceScatter, kReduce, kAllGather, kBroadcast, kSend, kRecv };

/// One call of a rank.
struct Operation {
  Kind kind = Kind::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = -1;  ///< peer or root
  cudaStream_t stream = nullptr;
};

std::string text_of(const Operation& operation);
std::size_t bytes_of(ncclDataType_t type);

/// Matches the operations of the ranks. Thread safety: called from the ranks' streams.
class Clique {
 public:
  explicit Clique(int ranks) : ranks_(ranks), collectives_(static_cast<std::size_t>(ranks)) {}

  int ranks() const { return ranks_; }

  /// Returns when the operation is done on this rank, or `aborted` is true. The nth collectives of all ranks are one
  /// operation; if they differ, they never end.
  void run_collective(int rank, const Operation& operation, const std::atomic<bool>& aborted);
  /// Runs sends and receives at once; a send is done when it is received.
  void run_messages(int rank, const std::vector<Operation>& messages, const std::atomic<bool>& aborted);
  /// Wakes waiting operations, so that they see that they are aborted.
  void wake();

 private:
  struct Meeting {
    std::map<int, Operation> arrived;
    bool done = false;
  };
  struct Message {
    Operation operation;
    bool done = false;
  };
  using Messages = std::deque<std::shared_ptr<Message>>;  // shared by the queue and by the rank that waits

  void complete(const Meeting& meeting) const;
  void match(int source, int destination);

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> collectives_;  ///< number of collectives of each rank so far
  std::map<std::uint64_t, Meeting> meetings_;
  std::map<std::pair<int, int>, Messages> sends_;     ///< sends of (source, destination)
  std::map<std::pair<int, int>, Messages> receives_;  ///< receives of (source, destination)
};

}  // namespace droptest::fake_nccl
