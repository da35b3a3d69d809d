// SPDX-License-Identifier: Apache-2.0
// Losses in messages on a device. The device itself counts packet indices, so a replay of a CUDA graph draws the fates
// of new packets.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "sim/loss/chain_states.h"
#include "sim/loss/link.h"

namespace droptest::nccl_shim {

/// A link as a sequence of packets, in device memory.
struct DeviceFlow {
  std::uint64_t seed = 0;
  std::uint32_t ranks_word = 0;  ///< word 2 of a Philox counter of the link (docs/fates.md)
  std::uint32_t place_word = 0;  ///< word 3, without the purpose
  sim::ChainThresholds thresholds;
  std::uint64_t payload_bytes = 1408;  ///< payload of a packet, a multiple of 8
  std::uint64_t origin = 0;            ///< index of the first packet
  std::uint64_t messages = 0;          ///< the counts so far, which kernels change
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;
  std::uint64_t lost = 0;
};

/// The Philox counter of a link. Throws: nothing.
void set_link(const sim::Link& link, DeviceFlow& flow);

/// The flows of the parts of a message. All pointers are to device memory.
struct FlowTable {
  DeviceFlow* const* flows = nullptr;  ///< null entries: the part arrives, and is not counted
  unsigned* tickets = nullptr;         ///< 0 between launches; only this table uses them
  std::uint64_t parts = 0;

  /// The table of one part.
  FlowTable part(std::uint64_t index) const { return {flows + index, tickets + index, 1}; }
};

/// The place of the message: part i begins i * part_bytes after the beginning.
struct DeviceMessage {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;  ///< may be `from`: then only lost packets are written
  std::uint64_t part_bytes = 0;
  std::uint64_t lost_word = 0;  ///< the elements of lost packets, repeated every 8 bytes
};

/// Uses up the packets of the next message of each flow, and copies the message with `lost_word` in lost packets. Works
/// in the order of `stream`, of the current device, by one launch, without allocations. A flow is in one launch at a
/// time.
/// Throws: DeviceError.
void lose_packets(const FlowTable& table, const DeviceMessage& message, std::uint64_t payload_bytes,
                  cudaStream_t stream);

}  // namespace droptest::nccl_shim
