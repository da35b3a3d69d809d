// SPDX-License-Identifier: Apache-2.0
// A reduction of contributions with missing packets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/fill/delivered_gaps.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Reduces the arrived packets of all contributions, in rank order and in one pass over the memory. Buffers are kept
/// between reductions.
/// Determinism: the arrived contributions to each element are reduced in rank order. If contribution 0 is lost, the
/// reduction starts with its neutral element: 0, or the lowest value for a maximum.
class DeliveredReduction {
 public:
  /// Starts a reduction of one message from each of `contributions` ranks, cut into `packets`, with nothing lost.
  void start(const sim::Packetizer& packets, int contributions);
  /// Starts a reduction of a part of the messages' elements. Fates are those of whole messages; contributions and
  /// results hold only the part.
  void start(const sim::Packetizer& packets, int contributions, sim::ElementRange part);
  /// Sets the fates of one rank's message, which are borrowed until the reduction; null: all arrived.
  void lose(int source, const sim::PacketMask* lost) { contributions_[static_cast<std::size_t>(source)] = lost; }
  /// Sets the fates of the message that carries the result to output `result`, as the words of a mask, which are
  /// borrowed until the reduction; empty: all packets arrive. Elements of lost packets become zero. Only reduce() in
  /// host memory reads them.
  void lose_result(int result, std::span<const std::uint64_t> lost) {
    results_[static_cast<std::size_t>(result)] = lost;
  }

  using Scaling = DeliveredScaling;
  /// The contract of PartReduction::reduce(). `like` has the element type, and the stream of all memory on a device.
  void reduce(ReduceOp op, ConstTensor like, const Scaling& scaling, std::span<const std::byte* const> contributions,
              std::span<std::byte* const> results);

  /// Reduces without gaps: the last arrived values replace those of a lost packet. `remembered` holds the last values
  /// of each source, one source after the other; newly arrived values overwrite them.
  void reduce_with_last(ReduceOp op, Tensor remembered, std::span<const std::byte* const> contributions,
                        std::span<std::byte* const> results);

 private:
  // A run of elements with the same arrived contributions. `lost` is at the packet of the run, and tells which
  // contributions are missing there; null: none is missing.
  struct Run {
    sim::ElementRange elements;
    const LostBySome* lost;
  };
  void reduce_run(const Run& run, ReduceOp op, Tensor remembered, std::span<const std::byte* const> contributions,
                  std::span<std::byte* const> results);

  sim::Packetizer packets_{0, 1, 1};
  sim::ElementRange part_;
  std::vector<const sim::PacketMask*> contributions_;    // fates by source
  std::vector<std::span<const std::uint64_t>> results_;  // fates by result
  DeliveredGaps gaps_;
  LostBySome lost_contributions_;
  std::vector<const std::byte*> inputs_;  // inputs of the current block
  std::vector<std::byte*> outputs_;       // outputs of the current block
};

}  // namespace droptest::comm
