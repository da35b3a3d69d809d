// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/mask_writer.h"

#include <string>

#include "sim/error.h"

namespace droptest::sim {

MaskWriter::MaskWriter(std::uint64_t first_packet, PacketMask& lost)
    : lost_(lost), first_word_(first_packet >> 6), offset_(static_cast<unsigned>(first_packet & 63)), words_(0) {
  // size + offset may exceed 2^64 - 1 only for masks that no memory holds.
  if (lost.size() > 0) words_ = (lost.size() + offset_ + 63) / 64;
}

void MaskWriter::put(std::span<const std::uint64_t> aligned) {
  DROPTEST_CHECK(aligned.size() <= words_left(),
                 std::to_string(aligned.size()) + " words, want at most " + std::to_string(words_left()));
  const std::span<std::uint64_t> out = lost_.words();
  for (const std::uint64_t word : aligned) {
    if (next_ < out.size()) out[next_] = word >> offset_;
    if (offset_ != 0 && next_ > 0) out[next_ - 1] |= word << (64 - offset_);
    ++next_;
  }
  const std::uint64_t tail = lost_.size() % 64;
  if (words_left() == 0 && tail != 0) out.back() &= (std::uint64_t{1} << tail) - 1;
}

}  // namespace droptest::sim
