// SPDX-License-Identifier: Apache-2.0
// CRC-32C, the checksum of files' contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace droptest::experiments {

/// CRC-32C of `bytes`; of none it is 0. Polynomial 0x1edc6f41, bits reflected, first and last XOR 0xffffffff.
/// Source: RFC 3720, appendix B.4, which has the test vectors.
std::uint32_t crc32c(std::span<const std::byte> bytes);

/// The CRC-32C of two pieces, the first one with the CRC `crc`, followed by `bytes`.
std::uint32_t crc32c_continued(std::uint32_t crc, std::span<const std::byte> bytes);

/// crc32c_continued() only from tables, for machines without the instruction and as the reference in tests.
std::uint32_t crc32c_by_tables(std::uint32_t crc, std::span<const std::byte> bytes);

}  // namespace droptest::experiments
