// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/utf8.h"

#include <cstdint>

namespace droptest::experiments {
namespace {

std::uint32_t utf8_byte(std::span<const std::byte> bytes, std::size_t offset) {
  return static_cast<std::uint32_t>(bytes[offset]);
}

/// The rule of a UTF-8 sequence by its first byte: its length, and the allowed range of the second byte.
struct SequenceRule {
  std::size_t length;
  std::uint32_t second_low;
  std::uint32_t second_high;
};

/// Source: The Unicode Standard 15, table 3-7 (well-formed UTF-8): no overlong forms, no surrogates, at most U+10FFFF.
std::optional<SequenceRule> sequence_rule(std::uint32_t first) {
  if (first < 0x80) return SequenceRule{1, 0, 0};
  if (first >= 0xc2 && first <= 0xdf) return SequenceRule{2, 0x80, 0xbf};
  if (first == 0xe0) return SequenceRule{3, 0xa0, 0xbf};
  if (first == 0xed) return SequenceRule{3, 0x80, 0x9f};
  if (first >= 0xe1 && first <= 0xef) return SequenceRule{3, 0x80, 0xbf};
  if (first == 0xf0) return SequenceRule{4, 0x90, 0xbf};
  if (first >= 0xf1 && first <= 0xf3) return SequenceRule{4, 0x80, 0xbf};
  if (first == 0xf4) return SequenceRule{4, 0x80, 0x8f};
  return std::nullopt;
}

}  // namespace

std::size_t utf8_sequence_length(std::span<const std::byte> bytes, std::size_t offset) {
  const std::optional<SequenceRule> rule = sequence_rule(utf8_byte(bytes, offset));
  if (!rule || bytes.size() - offset < rule->length) return 0;
  for (std::size_t i = 1; i < rule->length; ++i) {
    const std::uint32_t byte = utf8_byte(bytes, offset + i);
    const std::uint32_t low = i == 1 ? rule->second_low : 0x80;
    const std::uint32_t high = i == 1 ? rule->second_high : 0xbf;
    if (byte < low || byte > high) return 0;
  }
  return rule->length;
}

std::optional<std::size_t> first_invalid_utf8(std::span<const std::byte> bytes) {
  for (std::size_t offset = 0; offset < bytes.size();) {
    const std::size_t length = utf8_sequence_length(bytes, offset);
    if (length == 0) return offset;
    offset += length;
  }
  return std::nullopt;
}

}  // namespace droptest::experiments
