// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/token_source.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <utility>

#include "experiments/data/token_format.h"
#include "experiments/data/utf8.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr std::int32_t kLlmcVersion = 1;

std::uint32_t file_byte(std::span<const std::byte> bytes, std::size_t i) {
  return std::to_integer<std::uint32_t>(bytes[i]);
}

std::uint16_t uint16_at(std::span<const std::byte> bytes, std::size_t offset) {
  return static_cast<std::uint16_t>(file_byte(bytes, offset) | (file_byte(bytes, offset + 1) << 8));
}

std::int32_t int32_at(std::span<const std::byte> bytes, std::size_t offset) {
  return static_cast<std::int32_t>(file_byte(bytes, offset) | (file_byte(bytes, offset + 1) << 8) |
                                   (file_byte(bytes, offset + 2) << 16) | (file_byte(bytes, offset + 3) << 24));
}

/// The tokens behind llm.c's header, which `head` begins with.
std::uint64_t count_llmc_tokens(std::span<const std::byte> head, std::uint64_t file_bytes, const std::string& where) {
  if (file_bytes < kTokenHeaderBytes) {
    throw ConfigError(where + ": " + std::to_string(file_bytes) + " bytes, want a header of " +
                      std::to_string(kTokenHeaderBytes) + " bytes first (llm.c's token format)");
  }
  const std::int32_t magic = int32_at(head, 0);
  if (magic != kLlmcMagic) {
    if (const auto other = other_format(head, Guess::kYes)) throw ConfigError(where + ": " + *other);
    throw ConfigError(where + ": magic number " + std::to_string(magic) + ", want " + std::to_string(kLlmcMagic) +
                      " (llm.c's token format); for tokens without a header use format \"uint16\"");
  }
  const std::int32_t version = int32_at(head, 4);
  if (version != kLlmcVersion) {
    throw ConfigError(where + ": token format version " + std::to_string(version) + ", want " +
                      std::to_string(kLlmcVersion) + " (uint16 tokens)");
  }
  const std::int32_t count = int32_at(head, 8);
  const std::uint64_t behind = file_bytes - kTokenHeaderBytes;
  if (count < 0 || static_cast<std::uint64_t>(count) != behind / 2 || behind % 2 != 0) {
    throw ConfigError(where + ": the header counts " + std::to_string(count) + " tokens, but " +
                      std::to_string(behind) + " bytes follow it, want 2 for each token");
  }
  return behind / 2;
}

std::uint64_t bytes_of(Tokens::Layout layout) { return layout == Tokens::Layout::kText ? 1 : 2; }

/// Checks the beginning of the tokens.
Tokens checked(Tokens tokens) {
  tokens.check(0, std::min(tokens.size(), kTokensCheckedFirst));
  return tokens;
}

}  // namespace

Tokens::Tokens(std::span<const std::byte> bytes, Layout layout, int vocabulary, std::string where, std::uint64_t before)
    : bytes_(bytes),
      layout_(layout),
      vocabulary_(vocabulary),
      where_(std::move(where)),
      size_(bytes.size() / bytes_of(layout)),
      before_(before) {}

Tokens Tokens::part(std::uint64_t first, std::uint64_t size) const {
  DROPTEST_CHECK(first <= size_ && size <= size_ - first, where_ + ": a part beyond the tokens");
  Tokens part = *this;
  part.first_ += first;
  part.size_ = size;
  return part;
}

Tokens Tokens::kept_by(std::shared_ptr<const MappedFile> file) const {
  Tokens kept = *this;
  kept.file_ = std::move(file);
  return kept;
}

Tokens Tokens::kept_in(std::shared_ptr<const std::vector<std::byte>> memory) const {
  Tokens kept = *this;
  kept.memory_ = std::move(memory);
  return kept;
}

Tokens Tokens::with_files_at(std::vector<std::uint64_t> places) const {
  Tokens joined = *this;
  for (std::uint64_t& place : places) place += first_;
  joined.files_ = std::move(places);
  return joined;
}

std::vector<std::uint64_t> Tokens::files_in(std::uint64_t first, std::uint64_t count) const {
  const auto begin = std::lower_bound(files_.begin(), files_.end(), first_ + first);
  const auto end = std::lower_bound(begin, files_.end(), first_ + first + count);
  std::vector<std::uint64_t> places(begin, end);
  for (std::uint64_t& place : places) place -= first_;
  return places;
}

void Tokens::read(std::uint64_t first, std::span<std::int32_t> tokens) const {
  check(first, tokens.size());
  const std::uint64_t begin = first_ + first;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = layout_ == Layout::kText ? static_cast<std::int32_t>(file_byte(bytes_, begin + i))
                                         : static_cast<std::int32_t>(uint16_at(bytes_, 2 * (begin + i)));
  }
}

void Tokens::check(std::uint64_t first, std::uint64_t count) const {
  DROPTEST_CHECK(first <= size_ && count <= size_ - first, where_ + ": tokens beyond the end");
  if (file_) file_->require_unchanged();
  const std::uint64_t begin = first_ + first;
  if (layout_ == Layout::kText) {
    check_text(begin, begin + count);
  } else {
    check_vocabulary(begin, begin + count);
  }
}

void Tokens::check_text(std::uint64_t begin, std::uint64_t end) const {
  // A part may begin inside a character of up to four bytes: its first byte is the first of the three before that does
  // not continue a character.
  const auto continues = [this](std::uint64_t i) { return (file_byte(bytes_, i) & 0xc0U) == 0x80; };
  std::uint64_t offset = begin;
  while (offset < end && offset > 0 && begin - offset < 3 && continues(offset)) --offset;
  while (offset < end) {
    const std::size_t length = utf8_sequence_length(bytes_, offset);
    if (length == 0) {
      throw ConfigError(where_ + ": not UTF-8 at byte " + std::to_string(before_ + offset) + " (value " +
                        std::to_string(file_byte(bytes_, offset)) + "); convert the text, e.g. with iconv -t UTF-8");
    }
    offset += length;
  }
}

void Tokens::check_vocabulary(std::uint64_t begin, std::uint64_t end) const {
  for (std::uint64_t i = begin; i < end; ++i) {
    const int token = uint16_at(bytes_, 2 * i);
    if (token >= vocabulary_) {
      throw ConfigError(where_ + ": token " + std::to_string(token) + " at position " + std::to_string(before_ + i) +
                        ", want tokens below the model's vocabulary of " + std::to_string(vocabulary_) +
                        likely_cause(bytes_, vocabulary_));
    }
  }
}

Tokens parse_text(std::span<const std::byte> file, int vocabulary, const std::string& where) {
  if (vocabulary < 256) {
    throw ConfigError(where + ": the tokens of a text are its bytes: want a vocabulary of at least 256, got " +
                      std::to_string(vocabulary));
  }
  return checked({file, Tokens::Layout::kText, vocabulary, where});
}

std::uint64_t count_tokens(std::span<const std::byte> head, std::uint64_t file_bytes, TokenFormat format,
                           const std::string& where) {
  const bool has_magic = head.size() >= 4 && int32_at(head, 0) == kLlmcMagic;
  if (format == TokenFormat::kLlmc || (format == TokenFormat::kAuto && has_magic)) {
    return count_llmc_tokens(head, file_bytes, where);
  }
  if (const auto other = other_format(head, format == TokenFormat::kUint16 ? Guess::kNo : Guess::kYes)) {
    throw ConfigError(where + ": " + *other + " (read as headerless 16-bit tokens)");
  }
  if (file_bytes % 2 != 0) {
    throw ConfigError(where + ": " + std::to_string(file_bytes) +
                      " bytes, want an even number (headerless uint16 tokens)");
  }
  return file_bytes / 2;
}

Tokens parse_tokens(std::span<const std::byte> file, TokenFormat format, int vocabulary, const std::string& where) {
  const auto head = file.first(std::min<std::uint64_t>(file.size(), 2 * kTokensCheckedFirst));
  const std::uint64_t bytes = 2 * count_tokens(head, file.size(), format, where);
  return checked({file.last(bytes), Tokens::Layout::kUint16, vocabulary, where});
}

Tokens open_tokens(const DataConfig& data, int vocabulary) {
  if (data.text.empty() == data.tokens.empty()) {
    throw ConfigError("data: want a text or a token file, and not both");
  }
  const std::string& path = data.text.empty() ? data.tokens : data.text;
  auto file = std::make_shared<const MappedFile>(path);
  const Tokens tokens = data.text.empty() ? parse_tokens(file->bytes(), data.format, vocabulary, path)
                                          : parse_text(file->bytes(), vocabulary, path);
  return tokens.kept_by(std::move(file));
}

bool has_llmc_magic(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::array<char, 4> first{};
  if (!stream.read(first.data(), first.size())) return false;
  return int32_at(std::as_bytes(std::span<const char>(first)), 0) == kLlmcMagic;
}

}  // namespace droptest::experiments
