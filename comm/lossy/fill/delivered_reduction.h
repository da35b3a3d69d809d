// SPDX-License-Identifier: Apache-2.0
// A reduction of contributions of which packets are missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/fill/delivered_gaps.h"
#include "comm/lossy/fill/packet_runs.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// Sums, or takes the maxima of, what arrived of each contribution, in rank order and in one pass over the memory.
/// Buffers are kept between reductions.
/// Determinism: each element goes through the operations of its arrived contributions in rank order. Where the first
/// one is lost they begin with what the reduction leaves out: 0, or the lowest value.
class DeliveredReduction {
 public:
  /// Starts a reduction of messages that are cut as `packets` says, from that many ranks, with nothing lost.
  void start(const sim::Packetizer& packets, int contributions);
  /// The same of a part of the messages' elements. Fates are those of the whole messages, contributions and results
  /// those of the part.
  void start(const sim::Packetizer& packets, int contributions, sim::ElementRange part);
  /// Sets the fates of one rank's message, which are borrowed until the reduction; null: all arrived.
  void lose(int source, const sim::PacketMask* lost) { contributions_[static_cast<std::size_t>(source)] = lost; }
  /// Sets those of the message that brings the result to one of its places, as the words of a mask, likewise; empty:
  /// all arrives. What is lost there becomes zero. For reduce() in host memory.
  void lose_result(int result, std::span<const std::uint64_t> lost) {
    results_[static_cast<std::size_t>(result)] = lost;
  }

  using Scaling = DeliveredScaling;
  /// The contract of PartReduction::reduce(). `like` tells the type, and with a stream that all is on its device.
  void reduce(ReduceOp op, ConstTensor like, const Scaling& scaling, std::span<const std::byte* const> contributions,
              std::span<std::byte* const> results);

  /// The same, where what is lost is replaced by what arrived last, so that nothing is missing. `remembered` has that
  /// of each source, one after the other, and afterwards this reduction's in its place.
  void reduce_with_last(ReduceOp op, Tensor remembered, std::span<const std::byte* const> contributions,
                        std::span<std::byte* const> results);

 private:
  struct Source {
    PacketRunCursor cursor;
    PacketRun run;
  };
  // The message is walked in runs within which the same contributions are missing.
  void begin_walk();
  bool next_run();

  sim::Packetizer packets_{0, 1, 1};
  sim::ElementRange part_;
  std::vector<const sim::PacketMask*> contributions_;    // by source
  std::vector<std::span<const std::uint64_t>> results_;  // by result
  DeliveredGaps gaps_;
  std::vector<Source> sources_;  // where the walk over the message is
  sim::ElementRange run_;
  std::vector<const std::byte*> arrived_;  // inputs of the block at hand
  std::vector<std::byte*> outputs_;
};

}  // namespace droptest::comm
