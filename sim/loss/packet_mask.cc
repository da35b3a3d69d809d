// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/packet_mask.h"

#include <algorithm>
#include <bit>

namespace droptest::sim {

void PacketMask::resize(std::uint64_t packets) {
  const std::uint64_t words = packets / 64 + (packets % 64 != 0 ? 1 : 0);
  words_.assign(words, 0);
  size_ = packets;
}

std::uint64_t PacketMask::lost_count() const {
  std::uint64_t count = 0;
  for (const std::uint64_t word : words_) count += static_cast<std::uint64_t>(std::popcount(word));
  return count;
}

bool PacketMask::any_lost() const {
  return std::any_of(words_.begin(), words_.end(), [](std::uint64_t word) { return word != 0; });
}

}  // namespace droptest::sim
