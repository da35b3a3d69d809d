// SPDX-License-Identifier: Apache-2.0
// DeliveredReduction in device memory, in the order of a stream. Each function gives the bits of its twin on the host.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.h"
#include "comm/device/stream.h"
#include "comm/lossy/fill/delivered_gaps.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// A part of the ranks' messages, with one mask for each message; null: all arrived.
struct Contributions {
  sim::Packetizer packets;  ///< packets of the whole messages
  sim::ElementRange part;   ///< the elements that the inputs and outputs hold
  std::span<const sim::PacketMask* const> lost;
};

/// DeliveredReduction::reduce() in one launch.
void reduce_delivered_on_device(ReduceOp op, ElementType type, const Contributions& contributions,
                                const DeliveredScaling& scaling, std::span<const std::byte* const> inputs,
                                std::span<std::byte* const> outputs, Stream& stream);
/// DeliveredReduction::reduce_with_last(): the last values in `remembered` replace those of a lost packet, and arrived
/// values overwrite their places in it.
void reduce_with_last_on_device(ReduceOp op, const Contributions& contributions, Tensor remembered,
                                std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs);

}  // namespace droptest::comm
