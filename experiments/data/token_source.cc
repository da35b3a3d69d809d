// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/token_source.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr std::int32_t kLlmcMagic = 20240520;
constexpr std::int32_t kLlmcVersion = 1;
constexpr std::size_t kLlmcHeaderBytes = 256 * sizeof(std::int32_t);

std::uint32_t byte_at(std::span<const std::byte> bytes, std::size_t i) {
  return std::to_integer<std::uint32_t>(bytes[i]);
}

std::uint16_t uint16_at(std::span<const std::byte> bytes, std::size_t offset) {
  return static_cast<std::uint16_t>(byte_at(bytes, offset) | (byte_at(bytes, offset + 1) << 8));
}

std::int32_t int32_at(std::span<const std::byte> bytes, std::size_t offset) {
  return static_cast<std::int32_t>(byte_at(bytes, offset) | (byte_at(bytes, offset + 1) << 8) |
                                   (byte_at(bytes, offset + 2) << 16) | (byte_at(bytes, offset + 3) << 24));
}

/// What the first byte of a UTF-8 sequence says about it: its length, and the allowed range of the second byte.
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

/// Length of the well-formed sequence at `offset`, or 0.
std::size_t sequence_length(std::span<const std::byte> bytes, std::size_t offset) {
  const std::optional<SequenceRule> rule = sequence_rule(byte_at(bytes, offset));
  if (!rule || bytes.size() - offset < rule->length) return 0;
  for (std::size_t i = 1; i < rule->length; ++i) {
    const std::uint32_t byte = byte_at(bytes, offset + i);
    const std::uint32_t low = i == 1 ? rule->second_low : 0x80;
    const std::uint32_t high = i == 1 ? rule->second_high : 0xbf;
    if (byte < low || byte > high) return 0;
  }
  return rule->length;
}

Tokens words_of(std::span<const std::byte> bytes) {
  Tokens tokens(bytes.size() / 2);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = uint16_at(bytes, 2 * i);
  return tokens;
}

Tokens parse_llmc(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < kLlmcHeaderBytes) {
    throw ConfigError(where + ": " + std::to_string(file.size()) + " bytes, want a header of " +
                      std::to_string(kLlmcHeaderBytes) + " bytes first (llm.c's token format)");
  }
  const std::int32_t magic = int32_at(file, 0);
  if (magic != kLlmcMagic) {
    throw ConfigError(where + ": magic number " + std::to_string(magic) + ", want " + std::to_string(kLlmcMagic) +
                      " (llm.c's token format); for tokens without a header use format \"uint16\"");
  }
  const std::int32_t version = int32_at(file, 4);
  if (version != kLlmcVersion) {
    throw ConfigError(where + ": token format version " + std::to_string(version) + ", want " +
                      std::to_string(kLlmcVersion) + " (uint16 tokens)");
  }
  const std::int32_t count = int32_at(file, 8);
  const std::uint64_t stored = (file.size() - kLlmcHeaderBytes) / 2;
  if (count < 0 || static_cast<std::uint64_t>(count) != stored || (file.size() - kLlmcHeaderBytes) % 2 != 0) {
    throw ConfigError(where + ": the header counts " + std::to_string(count) + " tokens, but " +
                      std::to_string(file.size() - kLlmcHeaderBytes) + " bytes follow it, want 2 for each token");
  }
  return words_of(file.subspan(kLlmcHeaderBytes));
}

}  // namespace

Tokens parse_text(std::span<const std::byte> file, const std::string& where) {
  for (std::size_t offset = 0; offset < file.size();) {
    const std::size_t length = sequence_length(file, offset);
    if (length == 0) {
      throw ConfigError(where + ": not UTF-8 at byte " + std::to_string(offset) + " (value " +
                        std::to_string(byte_at(file, offset)) + "); convert the text, e.g. with iconv -t UTF-8");
    }
    offset += length;
  }
  Tokens tokens(file.size());
  std::transform(file.begin(), file.end(), tokens.begin(),
                 [](std::byte b) { return std::to_integer<std::uint16_t>(b); });
  return tokens;
}

Tokens parse_tokens(std::span<const std::byte> file, TokenFormat format, const std::string& where) {
  const bool has_magic = file.size() >= 4 && int32_at(file, 0) == kLlmcMagic;
  if (format == TokenFormat::kLlmc || (format == TokenFormat::kAuto && has_magic)) return parse_llmc(file, where);
  if (file.size() % 2 != 0) {
    throw ConfigError(where + ": " + std::to_string(file.size()) +
                      " bytes, want an even number (headerless uint16 tokens)");
  }
  return words_of(file);
}

void check_vocabulary(std::span<const std::uint16_t> tokens, int vocabulary, const std::string& where) {
  const auto bad =
      std::find_if(tokens.begin(), tokens.end(), [vocabulary](std::uint16_t t) { return t >= vocabulary; });
  if (bad == tokens.end()) return;
  throw ConfigError(where + ": token " + std::to_string(*bad) + " at position " + std::to_string(bad - tokens.begin()) +
                    ", want tokens below the model's vocabulary of " + std::to_string(vocabulary));
}

Tokens read_tokens(const DataConfig& data, int vocabulary) {
  if (data.text.empty() == data.tokens.empty()) {
    throw ConfigError("data: want a text or a token file, and not both");
  }
  if (!data.text.empty()) {
    if (vocabulary < 256) {
      throw ConfigError(data.text + ": the tokens of a text are its bytes: want a vocabulary of at least 256, got " +
                        std::to_string(vocabulary));
    }
    return parse_text(read_file_bytes(data.text), data.text);
  }
  Tokens tokens = parse_tokens(read_file_bytes(data.tokens), data.format, data.tokens);
  check_vocabulary(tokens, vocabulary, data.tokens);
  return tokens;
}

bool has_llmc_magic(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::array<char, 4> first{};
  if (!stream.read(first.data(), first.size())) return false;
  return int32_at(std::as_bytes(std::span<const char>(first)), 0) == kLlmcMagic;
}

std::vector<std::byte> read_file_bytes(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw ConfigError(path + ": is a directory, want a file");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw ConfigError(path + ": cannot open: " + std::strerror(errno));
  std::vector<std::byte> bytes;
  std::vector<char> chunk(std::size_t{1} << 20);
  while (stream) {
    stream.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    const auto* first = reinterpret_cast<const std::byte*>(chunk.data());
    bytes.insert(bytes.end(), first, first + stream.gcount());
  }
  if (stream.bad()) throw ConfigError(path + ": cannot read: " + std::strerror(errno));
  return bytes;
}

}  // namespace droptest::experiments
