// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/packet_mask.h"

#include <algorithm>

namespace droptest::sim {

void PacketMask::resize(std::uint64_t packets) {
  const std::uint64_t words = packets / 64 + (packets % 64 != 0 ? 1 : 0);
  words_.assign(words, 0);
  size_ = packets;
}

std::uint64_t PacketMask::lost_count() const {
  std::uint64_t count = 0;
  for (std::uint64_t word : words_) {
    // Bits are counted here: std::popcount is a call if the processor may have no instruction for it.
    word -= word >> 1 & 0x5555555555555555;
    word = (word & 0x3333333333333333) + (word >> 2 & 0x3333333333333333);
    word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f;
    count += word * 0x0101010101010101 >> 56;
  }
  return count;
}

bool PacketMask::any_lost() const {
  return std::any_of(words_.begin(), words_.end(), [](std::uint64_t word) { return word != 0; });
}

}  // namespace droptest::sim
