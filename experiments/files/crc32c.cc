// SPDX-License-Identifier: Apache-2.0
#include "experiments/files/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace droptest::experiments {
namespace {

constexpr std::uint32_t kReflectedPolynomial = 0x82f63b78U;
constexpr std::size_t kSlices = 8;  ///< bytes that one round of the tables takes

/// tables[k][b]: the CRC of byte b followed by k zero bytes, without the XORs at the ends.
using SliceTables = std::array<std::array<std::uint32_t, 256>, kSlices>;

constexpr SliceTables make_tables() {
  SliceTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? kReflectedPolynomial : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < kSlices; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8U) ^ tables[0][before & 0xffU];
    }
  }
  return tables;
}

constexpr SliceTables kTables = make_tables();

std::uint32_t byte_at(std::span<const std::byte> bytes, std::size_t i) {
  return std::to_integer<std::uint32_t>(bytes[i]);
}

#if defined(__x86_64__)
/// One instruction takes eight bytes.
[[gnu::target("sse4.2")]] std::uint32_t crc_by_instruction(std::uint32_t crc, std::span<const std::byte> bytes) {
  std::uint64_t state = ~crc;
  for (; bytes.size() >= sizeof(std::uint64_t); bytes = bytes.subspan(sizeof(std::uint64_t))) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof(word));
    state = _mm_crc32_u64(state, word);
  }
  auto narrow = static_cast<std::uint32_t>(state);
  for (const std::byte byte : bytes) narrow = _mm_crc32_u8(narrow, std::to_integer<std::uint8_t>(byte));
  return ~narrow;
}
#endif

}  // namespace

std::uint32_t crc32c_by_tables(std::uint32_t crc, std::span<const std::byte> bytes) {
  std::uint32_t state = ~crc;
  for (; bytes.size() >= kSlices; bytes = bytes.subspan(kSlices)) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < kSlices; ++i) {
      const std::uint32_t from_state = i < 4 ? (state >> (8 * i)) & 0xffU : 0U;
      next ^= kTables[kSlices - 1 - i][byte_at(bytes, i) ^ from_state];
    }
    state = next;
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    state = (state >> 8U) ^ kTables[0][(state ^ byte_at(bytes, i)) & 0xffU];
  }
  return ~state;
}

std::uint32_t crc32c_continued(std::uint32_t crc, std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc_by_instruction(crc, bytes);
#endif
  return crc32c_by_tables(crc, bytes);
}

std::uint32_t crc32c(std::span<const std::byte> bytes) { return crc32c_continued(0, bytes); }

}  // namespace droptest::experiments
