// SPDX-License-Identifier: Apache-2.0
// Flags of the keys and values that a rank lost, wholly or in part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/packets/packetizer.h"

namespace droptest::models {

/// One flag for each (token, sequence, head), in this order: 1 means absent. See AttentionInputs::absent.
using Absences = std::vector<std::uint8_t>;

/// Marks each head that lost at least one of its `width` elements. `lost` counts elements [token, sequence, head,
/// width].
inline void mark_absent(std::span<const sim::ElementRange> lost, std::int64_t width, std::span<std::uint8_t> absent) {
  const auto elems = static_cast<std::uint64_t>(width);
  for (const sim::ElementRange& range : lost) {
    for (std::uint64_t head = range.begin / elems; head * elems < range.end; ++head) absent[head] = 1;
  }
}

/// Packed flags for messages: 64 flags in a word.
using FlagWords = std::vector<std::uint64_t>;
/// Flag i is bit i % 64 of word i / 64. Flags are 0 or 1.
inline FlagWords packed_flags(std::span<const std::uint8_t> flags) {
  FlagWords words((flags.size() + 63) / 64);
  for (std::size_t i = 0; i < flags.size(); ++i) words[i / 64] |= std::uint64_t{flags[i]} << i % 64;
  return words;
}
/// The inverse of packed_flags(). `words` may have more bits than there are flags.
inline void unpack_flags(const FlagWords& words, std::span<std::uint8_t> flags) {
  for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = static_cast<std::uint8_t>(words[i / 64] >> i % 64 & 1);
}

}  // namespace droptest::models
