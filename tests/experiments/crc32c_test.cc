// SPDX-License-Identifier: Apache-2.0
// CRC-32C: the vectors of RFC 3720, pieces, and the instruction against the tables.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "experiments/files/crc32c.h"

namespace droptest::experiments::crc32c_test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

/// 0, 1, 2, ... or any other start and step, modulo 256.
std::vector<std::byte> counted(std::size_t count, int first, int step) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + static_cast<int>(i) * step);
  return bytes;
}

TEST(Crc32c, HasTheKnownAnswers) {
  EXPECT_EQ(crc32c({}), 0U);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283U);
  EXPECT_EQ(crc32c(counted(32, 0, 0)), 0x8a9136aaU);
  EXPECT_EQ(crc32c(counted(32, 0xff, 0)), 0x62a8ab43U);
  EXPECT_EQ(crc32c(counted(32, 0, 1)), 0x46dd794eU);
  EXPECT_EQ(crc32c(counted(32, 31, -1)), 0x113fdb5cU);
  EXPECT_EQ(crc32c_by_tables(0, bytes_of("123456789")), 0xe3069283U);
}

TEST(Crc32c, InstructionAndTablesAgreeForEveryLengthAndAlignment) {
  const std::vector<std::byte> bytes = counted(96, 7, 37);
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t count = 0; begin + count <= bytes.size(); ++count) {
      const auto part = std::span(bytes).subspan(begin, count);
      ASSERT_EQ(crc32c(part), crc32c_by_tables(0, part)) << begin << " " << count;
    }
  }
}

TEST(Crc32c, PiecesGiveTheChecksumOfTheWhole) {
  const std::vector<std::byte> bytes = counted(41, 3, 11);
  const std::uint32_t whole = crc32c(bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    const auto first = std::span(bytes).first(cut);
    const auto rest = std::span(bytes).subspan(cut);
    EXPECT_EQ(crc32c_continued(crc32c(first), rest), whole) << cut;
    EXPECT_EQ(crc32c_by_tables(crc32c_by_tables(0, first), rest), whole) << cut;
  }
}

}  // namespace
}  // namespace droptest::experiments::crc32c_test
