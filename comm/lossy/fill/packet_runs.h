// SPDX-License-Identifier: Apache-2.0
// A message as runs of packets with the same fate, so that loops work on whole runs and test no element.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/tensor_operations.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Consecutive elements of packets that were all lost, or all delivered.
struct PacketRun {
  enum class Fate : std::uint8_t { kDelivered, kLost };
  sim::ElementRange elements;
  Fate fate = Fate::kDelivered;
};

/// Walks over the maximal runs of a message in order.
class PacketRunCursor {
 public:
  /// `lost` has one bit per packet of `packets`; null: all delivered. Both are borrowed.
  PacketRunCursor(const sim::PacketMask* lost, const sim::Packetizer& packets) : lost_(lost), packets_(packets) {}

  /// Sets `run` to the next run; false after the last one.
  bool next(PacketRun& run);

 private:
  const sim::PacketMask* lost_;
  const sim::Packetizer& packets_;
  std::uint64_t packet_ = 0;
};

/// Appends the ranges of lost elements to `ranges`, which are ascending and end at or before `first_element`, the
/// number of the first element of the message. Adjacent ranges are joined.
void append_lost(const sim::PacketMask* lost, const sim::Packetizer& packets, std::uint64_t first_element,
                 std::vector<sim::ElementRange>& ranges);

/// The copies and fills below act on the elements of one message: `data` has packets.count_elems() elements. A null
/// mask means that all was delivered. All tensors are in one memory; those on a device are changed in the order of
/// their stream, by one launch.

/// Sets lost elements to zero.
void zero_lost(Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets);
/// Sets lost elements to the lowest value of the type, the neutral element of a maximum.
void lowest_lost(Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets);
/// Sets all elements to the neutral element of a reduction: zero for a sum, the lowest value for a maximum.
void set_left_out(Tensor data, ReduceOp op);
/// Copies lost elements from `from`.
void copy_lost(ConstTensor from, Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets);
/// Copies delivered elements from `from`.
void copy_delivered(ConstTensor from, Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets);

/// data = data op from, for delivered elements.
void reduce_delivered(ReduceOp op, ConstTensor from, Tensor data, const sim::PacketMask* lost,
                      const sim::Packetizer& packets);

}  // namespace droptest::comm
