// SPDX-License-Identifier: Apache-2.0
// Text and token files as token sequences (docs/formats.md). Parsing works on bytes in memory, apart from reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "experiments/run_config.h"

namespace droptest::experiments {

/// Tokens of at most 16 bits: every vocabulary in use fits, and a corpus takes half the memory.
using Tokens = std::vector<std::uint16_t>;

/// The bytes of a text as tokens. `where` names the file in messages.
/// Throws: ConfigError with the byte offset where the text is not UTF-8.
Tokens parse_text(std::span<const std::byte> file, const std::string& where);

/// The tokens of a token file. kAuto takes llm.c's layout where the file begins with its magic number.
/// Throws: ConfigError for a header that is short, of another magic or version, or whose count is not what the file
/// holds; for a headerless file of an odd number of bytes.
Tokens parse_tokens(std::span<const std::byte> file, TokenFormat format, const std::string& where);

/// Throws: ConfigError with the position and value of the first token that is not below `vocabulary`.
void check_vocabulary(std::span<const std::uint16_t> tokens, int vocabulary, const std::string& where);

/// Reads, parses and checks the file that `data` names: text, or tokens.
/// Throws: ConfigError as above; for a text where vocabulary < 256; for a file that cannot be read.
Tokens read_tokens(const DataConfig& data, int vocabulary);

/// Whether the file begins with the magic number of llm.c's layout; false where it cannot be read.
bool has_llmc_magic(const std::string& path);

/// A file's bytes. Throws: ConfigError naming the path and the system's reason.
std::vector<std::byte> read_file_bytes(const std::string& path);

}  // namespace droptest::experiments
