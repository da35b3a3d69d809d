// SPDX-License-Identifier: Apache-2.0
// The gaps of a reduction, found from the fates one by one during the reduction.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/rank_order_reduction.h"
#include "sim/loss/packet_mask.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {

/// The factors of a reduction with lost contributions. Each product is rounded to the element type. Factors other than
/// 1 have a meaning only for sums and means of floats.
struct DeliveredScaling {
  enum class Sums : std::uint8_t { kAsTheyAre, kByCount };
  double contributions = 1;      ///< factor on each contribution, before the addition
  int exempt = -1;               ///< the contribution without a factor; -1: none
  Sums sums = Sums::kAsTheyAre;  ///< kByCount: a sum x contributions / arrived; 0 if none arrived
  /// The contribution to a mean that replaces each missing one. It is never missing itself, and it is the result if no
  /// other contribution arrived. -1: missing contributions are left out.
  int substitute = -1;
};

/// The packets of messages of one shape, and the range of their elements that a reduction has in memory. `packets` is
/// borrowed.
struct MessagePart {
  const sim::Packetizer& packets;  ///< packets of the whole messages
  sim::ElementRange elements;
};

/// The packets of a part that at least one of several messages lost, in order. The masks are transposed: the bits of
/// all messages for one packet are neighbours, which saves cache misses, because a block of a reduction fills most of
/// the caches.
class LostBySome {
 public:
  /// Starts with the fates of the messages; null or empty: all packets arrived.
  void start(const MessagePart& part, std::span<const sim::PacketMask* const> masks);
  void start(const MessagePart& part, std::span<const std::span<const std::uint64_t>> words_of_masks);

  /// Goes on to the next packet; false after the last one.
  bool next();
  std::uint64_t packet() const {
    return 64 * (first_word_ + word_) + static_cast<std::uint64_t>(std::countr_zero(bit_));
  }
  /// 1 if the message lost this packet, else 0.
  std::size_t lost_by(std::size_t message) const { return (of_word_[message] & bit_) != 0 ? 1 : 0; }

 private:
  template <class WordsOf>
  void turn(const MessagePart& part, std::size_t messages, const WordsOf& words_of);

  std::vector<std::uint64_t> bits_;   // the words of all messages for 64 packets, then for the next 64
  std::vector<std::uint64_t> ahead_;  // lost packets that are still to come, in words of 64 packets
  std::size_t messages_ = 0;
  std::uint64_t first_word_ = 0;
  std::size_t word_ = 0;
  std::uint64_t bit_ = 0;                   // the packet's bit in its word
  const std::uint64_t* of_word_ = nullptr;  // the words of all messages for its 64 packets
};

/// The gaps of a reduction in which packets of contributions and results are lost. Buffers are kept between reductions.
/// If contribution 0 is lost and has no substitute, the reduction starts with its neutral element: 0, or the lowest
/// value for a maximum.
class DeliveredGaps final : public ReductionGaps {
 public:
  /// Starts with fates by source, and by result as the words of masks; null or empty: all arrived. inputs[r] points to
  /// the first element of the part in contribution r; `inputs` stays valid until the last gap has been read.
  void start(ReduceOp op, ElementType type, const DeliveredScaling& scaling, const MessagePart& part,
             std::span<const sim::PacketMask* const> contributions,
             std::span<const std::span<const std::uint64_t>> results, std::span<const std::byte* const> inputs);

  std::span<const double> factors() const override { return factors_; }
  const ReductionGap* next_input_gap() override;
  const OutputGap* next_output_gap() override;

 private:
  sim::ElementRange in_part(std::uint64_t packet) const;
  const ReductionGap* substituted_gap(sim::ElementRange elements);
  const std::byte* left_out();
  std::span<const double> factors_of_gap();

  ReduceOp op_ = ReduceOp::kSum;
  ElementType type_ = ElementType::kFloat32;
  DeliveredScaling scaling_;
  sim::ElementRange part_;
  sim::Packetizer packets_{0, 1, 1};
  std::span<const std::byte* const> inputs_;
  std::vector<double> factors_;

  LostBySome lost_contributions_;
  ReductionGap input_gap_;
  std::vector<const std::byte*> present_;
  std::vector<const std::byte*> absent_;
  std::vector<double> present_factors_;
  std::vector<std::byte> left_out_;  // neutral elements, one packet long; empty until a gap needs them

  LostBySome lost_results_;
  std::size_t results_ = 0;
  OutputGap output_gap_;
  std::vector<std::size_t> outputs_;
};

}  // namespace droptest::comm
