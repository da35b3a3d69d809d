// SPDX-License-Identifier: Apache-2.0
// One rank's membership in a communicator of NCCL: the world ranks of its members, and the losses of its calls.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/droptest.h"
#include "api/nccl/rank_losses.h"

namespace droptest::nccl_shim {

/// The values that the members of a new communicator tell each other.
struct Identity {
  std::int32_t world_rank = 0;
  std::int32_t world_size = 0;   ///< number of the program's ranks, from its launcher
  std::uint64_t digest = 0;      ///< RankLosses::digest()
  std::uint64_t next_group = 0;  ///< RankLosses::next_group()
};

/// One call, as NCCL's functions get it.
struct NcclCall {
  const char* operation = "";
  std::size_t count = 0;  ///< elements of this rank's message: of the input, or of recv's output
  ncclDataType_t type = ncclFloat32;
  cudaStream_t stream = nullptr;
};

std::size_t bytes_of(ncclDataType_t type);

/// Thread safety: all methods may be called from any thread at once. Throws: ConfigError and DeviceError that name the
/// rank.
class Member {
 public:
  /// `members` are those of the communicator's ranks, in order. `losses` is shared by the rank's communicators.
  Member(std::shared_ptr<RankLosses> losses, const std::vector<Identity>& members, int rank, int device);

  int device() const { return device_; }
  RankLosses& losses() const { return *losses_; }
  const std::shared_ptr<RankLosses>& shared_losses() const { return losses_; }

  /// The class of a call with packets that can be lost; absent: the call is exempt, and counted as exempt.
  std::optional<droptest_class> class_of(const NcclCall& call);
  /// Counts a call in which this layer cannot lose packets.
  void exempt(const NcclCall& call);

  /// Throws: ConfigError for a function in which this layer cannot lose packets, if a class of its messages can lose
  /// some. `want`: the function to call in its place.
  void refuse_loss(const char* function, const std::vector<droptest_class>& classes, const char* want);

  /// Copies this rank's contribution to a sum or maximum to `to`, without its lost packets, in the order of the call's
  /// stream.
  void lose_contribution(droptest_class traffic_class, const NcclCall& call, droptest_reduction reduction,
                         const void* from, void* to);
  /// The losses of received messages. Part i of an all-gather is of rank i, for all its receivers at once.
  Fill gathered(droptest_class traffic_class, const NcclCall& call, void* to);
  /// The losses of received messages. Part i is a message from rank i to this rank; its own part arrives.
  Fill exchanged(droptest_class traffic_class, const NcclCall& call, void* to);
  Fill received(droptest_class traffic_class, const NcclCall& call, int source, void* to);

  /// Memory for a copy of an input that is read later than `call`. It is valid until the next scratch of its stream;
  /// within a group until end_group().
  void* scratch(const NcclCall& call, std::size_t bytes, bool in_group);
  void end_group();

 private:
  struct Tables {
    std::unique_ptr<LinkTable> contribution;  // link of the contribution, of one part
    std::unique_ptr<LinkTable> from_all;      // links to every destination, by source
    std::unique_ptr<LinkTable> to_me;         // links to this rank, by source
  };
  struct Scratch {
    std::vector<std::unique_ptr<DeviceBytes>> memory;  // the last one is in use; queued work may use the others
    std::size_t used = 0;
  };
  enum class Route { kContribution, kFromAll, kToMe };

  LinkTable& table(droptest_class traffic_class, Route route);
  Fill fill(droptest_class traffic_class, Route route, std::optional<int> part, const NcclCall& call, void* to);
  droptest_call as_call(const NcclCall& call) const;

  const std::shared_ptr<RankLosses> losses_;
  std::vector<std::int32_t> world_ranks_;
  std::uint32_t group_ = 0;
  const int rank_;
  const int device_;
  std::mutex mutex_;
  std::map<droptest_class, Tables> tables_;
  std::map<std::pair<cudaStream_t, unsigned long long>, Scratch> scratch_;  // scratch by stream and capture
};

}  // namespace droptest::nccl_shim
