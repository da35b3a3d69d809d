// SPDX-License-Identifier: Apache-2.0
// The losses of one rank of the program: its network, its flows on the device, and its counts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "api/droptest.h"
#include "api/nccl/device_memory.h"
#include "api/nccl/lose_packets.h"

namespace droptest::nccl_shim {

/// Throws: ConfigError or DeviceError with the C interface's message, after "rank R: ", unless `status` is a success.
void check(droptest_status status, int rank);

/// The last launch that used packets of a link. The next launch comes after it, also on another stream.
struct LinkUse {
  std::shared_ptr<Event> after;  ///< end of one launch, shared by the links that the launch used; null: none yet
};

/// A link of this rank on a device.
struct DeviceLink {
  const DeviceFlow* flow = nullptr;  ///< null: its part of a message arrives
  LinkUse* use = nullptr;            ///< lives as long as RankLosses
};

/// Links with flows in device memory, one for each part of a message.
class LinkTable {
 public:
  explicit LinkTable(const std::vector<DeviceLink>& links);
  FlowTable all() const;
  /// Uses of all links, without those that arrive.
  std::span<LinkUse* const> uses() const { return uses_; }
  /// Uses of one part.
  std::span<LinkUse* const> use(std::size_t part) const;

 private:
  std::vector<LinkUse*> uses_;
  std::vector<std::size_t> place_;  // place of each part in uses_
  std::uint64_t parts_;
  DeviceBytes memory_;
};

/// A message on a device, which can lose packets once NCCL has put its work on the stream.
struct Fill {
  FlowTable table;
  std::span<LinkUse* const> uses;
  DeviceMessage message;
  std::uint64_t payload_bytes = 0;
  cudaStream_t stream = nullptr;
};

/// Thread safety: all methods may be called from any thread at once.
class RankLosses {
 public:
  /// Reads the file that DROPTEST_NETWORK names. Throws: ConfigError that names the rank and the member.
  RankLosses(int rank, int world_size);
  /// Frees nothing on the device: the program may have ended its use of CUDA.
  ~RankLosses();
  RankLosses(const RankLosses&) = delete;
  RankLosses& operator=(const RankLosses&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  /// The class of a call, which is counted if it is exempt; DROPTEST_CONTROL: no packet is lost.
  droptest_class classify(const droptest_call& call);
  /// Counts a call in which this layer cannot lose packets.
  void count_exempt(const droptest_call& call);

  /// The flow of a link on the current device; the same one each time. `counted`: this rank counts the link. Throws:
  /// ConfigError for a loss that cannot be drawn on a device, or a fill that needs the results.
  DeviceLink link(const droptest_link& link, bool counted);
  /// Loses packets of the message in the order of its stream, and after earlier launches for the same links on other
  /// streams: the packets of a link are used in the order of the calls. A stream that is captured waits for no other.
  /// Throws: DeviceError.
  void lose(const Fill& fill);
  /// Whether the network has a loss for messages of the class.
  bool can_lose(droptest_class traffic_class) const;
  /// The digest of the network: equal on ranks with equal networks.
  std::uint64_t digest() const;
  /// The payload of a packet of the class, in bytes.
  std::uint64_t payload_bytes(droptest_class traffic_class);

  /// The number of the next process group. No rank of the group may have used a larger number.
  std::uint32_t next_group();
  void use_group(std::uint32_t number);

  /// Waits for the device, adds its counts to the network's, and writes them if the network names a folder. Throws:
  /// DeviceError if the device lost other packets than the host draws.
  void write_counts();

 private:
  using Key = std::tuple<int, int, int, int, std::uint32_t>;
  struct Entry {
    droptest_flow* flow = nullptr;  // borrowed from the network
    bool counted = false;
    std::unique_ptr<DeviceBytes> memory;  // memory of one DeviceFlow
    DeviceFlow known;                     // the flow with the counts that the network has
    std::unique_ptr<LinkUse> use;
  };

  Entry make(const droptest_link& link, bool counted);

  const int rank_;
  const int world_size_;
  droptest_network* network_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Entry> flows_;
  std::map<droptest_class, std::uint64_t> payloads_;
  std::uint32_t next_group_ = 0;
};

}  // namespace droptest::nccl_shim
