// SPDX-License-Identifier: Apache-2.0
// Well-formed UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace droptest::experiments {

/// Length of the well-formed sequence at `offset`, or 0. Source: The Unicode Standard 15, table 3-7: no overlong forms,
/// no surrogates, at most U+10FFFF.
std::size_t utf8_sequence_length(std::span<const std::byte> bytes, std::size_t offset);

/// The first byte that begins no well-formed sequence; absent: there is none.
std::optional<std::size_t> first_invalid_utf8(std::span<const std::byte> bytes);

}  // namespace droptest::experiments
