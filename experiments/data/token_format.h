// SPDX-License-Identifier: Apache-2.0
// Files that are taken for headerless 16-bit tokens though they are something else (docs/formats.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace droptest::experiments {

/// The magic number of llm.c's 16-bit tokens.
inline constexpr std::int32_t kLlmcMagic = 20240520;

/// First bytes of a file that tell its format: callers pass so many, or all.
inline constexpr std::uint64_t kTokenHeadBytes = 65536;

/// The kind of a file by its first bytes, and what to do: "is a NumPy file ...; want ...". Absent: by these bytes it is
/// none of the known formats. Known are NumPy's, archives, Parquet and Arrow, Megatron's index, llm.c's other files,
/// 1,024 bytes of ASCII text, and integers of 32 or 64 bits. Integers are assumed if, in at least 1,000 odd places of
/// 16-bit words, more than 99 % are zeros, but not in the even places. They are sought in all of `head`.
/// Texts and integers are guesses; a reader leaves them out if its user has named the format.
enum class Guess : std::uint8_t { kNo, kYes };
std::optional<std::string> other_format(std::span<const std::byte> head, Guess guess);

/// The reason why words of 16 bits may be beyond a vocabulary: "; the file is likely of ...".
std::string likely_cause(std::span<const std::byte> words, int vocabulary);

}  // namespace droptest::experiments
