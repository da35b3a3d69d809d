// SPDX-License-Identifier: Apache-2.0
// A reduction of contributions of which packets are missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/losses_by_rank.h"
#include "comm/lossy/packet_runs.h"
#include "comm/rank_order_reduction.h"
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
  /// Takes the fates of one rank's message, a copy; null: all arrived.
  void lose(int source, const sim::PacketMask* lost) { contributions_.set(source, lost); }
  /// Takes the fates of the messages that bring the result to one of its places, likewise: what is lost there becomes
  /// zero. For reduce() in host memory.
  void lose_result(int result, const sim::PacketMask* lost) { results_.set(result, lost); }

  /// What is multiplied, rounded to the type each time. Sums of floats only, unless nothing is.
  struct Scaling {
    enum class Sums : std::uint8_t { kAsTheyAre, kByCount };
    double contributions = 1;      ///< each contribution, before it is added
    int exempt = -1;               ///< but for this one
    Sums sums = Sums::kAsTheyAre;  ///< kByCount: by contributions / arrived where some are missing; 0 without any
  };
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

  sim::ElementRange in_part(std::uint64_t packet) const;
  template <class Visit>
  void visit_lost(const LossesByRank& losses, const Visit& visit);
  ReductionGap gap_of(std::uint64_t packet, ReduceOp op, ElementType type, const Scaling& scaling,
                      std::span<const std::byte* const> contributions);
  void find_gaps(ReduceOp op, ElementType type, const Scaling& scaling,
                 std::span<const std::byte* const> contributions);
  void find_result_gaps();
  const std::byte* left_out(ReduceOp op, ElementType type);

  sim::Packetizer packets_{0, 1, 1};
  sim::ElementRange part_;
  LossesByRank contributions_;   // by source
  LossesByRank results_;         // by result
  std::vector<Source> sources_;  // where the walk over the message is
  sim::ElementRange run_;
  std::vector<const std::byte*> arrived_;  // inputs of the block at hand
  std::vector<std::byte*> outputs_;

  std::vector<std::uint64_t> lost_by_some_;
  std::vector<ReductionGap> gaps_;
  std::vector<OutputGap> result_gaps_;
  std::vector<const std::byte*> gap_inputs_;
  std::vector<double> factors_;  // of the contributions; empty where none is multiplied
  std::vector<double> gap_factors_;
  std::vector<std::byte> left_out_;
};

}  // namespace droptest::comm
