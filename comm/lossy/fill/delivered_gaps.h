// SPDX-License-Identifier: Apache-2.0
// From fates to the gaps of a reduction, found one by one while it goes on.
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

/// What a reduction of contributions with losses multiplies, rounded to the type each time. Sums of floats only, unless
/// nothing is.
struct DeliveredScaling {
  enum class Sums : std::uint8_t { kAsTheyAre, kByCount };
  double contributions = 1;      ///< each contribution, before it is added
  int exempt = -1;               ///< but for this one
  Sums sums = Sums::kAsTheyAre;  ///< kByCount: by contributions / arrived where some are missing; 0 without any
  /// The contribution to a mean that stands for those that are missing, and is itself the result where no other one
  /// arrived; it never is missing. -1: what is missing is left out.
  int substitute = -1;
};

/// Messages of one shape and the part of their elements that is at hand. All is borrowed.
struct MessagePart {
  const sim::Packetizer& packets;  ///< of the whole messages
  sim::ElementRange elements;
};

/// The packets of a part that some of several messages lost, in order. The masks are turned round, so that what a
/// packet needs lies together: a block of a reduction leaves little else in the caches.
class LostBySome {
 public:
  /// Of messages with these fates; null or empty: all arrived.
  void start(const MessagePart& part, std::span<const sim::PacketMask* const> masks);
  void start(const MessagePart& part, std::span<const std::span<const std::uint64_t>> words_of_masks);

  /// Goes on to the next packet; false after the last one.
  bool next();
  std::uint64_t packet() const {
    return 64 * (first_word_ + word_) + static_cast<std::uint64_t>(std::countr_zero(bit_));
  }
  /// Whether a message lost it: 1, else 0.
  std::size_t lost_by(std::size_t message) const { return (of_word_[message] & bit_) != 0 ? 1 : 0; }

 private:
  template <class WordsOf>
  void turn(const MessagePart& part, std::size_t messages, const WordsOf& words_of);

  std::vector<std::uint64_t> bits_;   // of each message for 64 packets, then for the next 64
  std::vector<std::uint64_t> ahead_;  // of 64 packets: those that some message lost and that are still to come
  std::size_t messages_ = 0;
  std::uint64_t first_word_ = 0;
  std::size_t word_ = 0;
  std::uint64_t bit_ = 0;                   // of the packet, in its word
  const std::uint64_t* of_word_ = nullptr;  // of each message
};

/// The gaps of a reduction whose contributions and results lost packets. Buffers are kept between reductions.
/// The reduction begins with what it leaves out, 0 or the lowest value, where the first contribution is lost and none
/// stands for it.
class DeliveredGaps final : public ReductionGaps {
 public:
  /// Fates by source, and by result as the words of masks; null or empty: all arrived. `inputs` are where the
  /// contributions' elements of the part begin, and must stay while gaps are asked for.
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
  std::vector<std::byte> left_out_;  // a packet of it; empty until a gap needs it

  LostBySome lost_results_;
  std::size_t results_ = 0;
  OutputGap output_gap_;
  std::vector<std::size_t> outputs_;
};

}  // namespace droptest::comm
