// SPDX-License-Identifier: Apache-2.0
// From words that begin at multiples of 64 packets to a mask that begins at any packet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "sim/loss/packet_mask.h"

namespace droptest::sim {

/// Fills a mask with the aligned words that cover it: word k holds packets 64 * (first_word() + k) onwards.
/// Every word must be given once, in order; the mask is complete after the last one.
class MaskWriter {
 public:
  /// `lost` is borrowed; its size is the number of packets wanted, from first_packet on.
  MaskWriter(std::uint64_t first_packet, PacketMask& lost);

  /// Index of the first aligned word.
  std::uint64_t first_word() const { return first_word_; }
  /// Aligned words that are still wanted.
  std::uint64_t words_left() const { return words_ - next_; }
  /// Takes the next aligned words, at most words_left().
  void put(std::span<const std::uint64_t> aligned);

 private:
  PacketMask& lost_;
  std::uint64_t first_word_;
  unsigned offset_;  ///< bits of the first aligned word that lie before the mask
  std::uint64_t words_;
  std::uint64_t next_ = 0;
};

}  // namespace droptest::sim
