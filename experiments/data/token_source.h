// SPDX-License-Identifier: Apache-2.0
// Text and token files as token sequences, read in place (docs/formats.md). Parsing works on bytes in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "experiments/data/data_config.h"
#include "experiments/files/mapped_file.h"

namespace droptest::experiments {

/// Consecutive tokens of a file, which stay where the file has them. Thread safety: const.
class Tokens {
 public:
  enum class Layout : std::uint8_t {
    kText,    ///< UTF-8, a token is a byte
    kUint16,  ///< two bytes, little-endian
  };

  Tokens() = default;
  /// All tokens in `bytes`, which are borrowed. `vocabulary` is that of the model that reads them; `where` names the
  /// file, in which `before` tokens come first.
  Tokens(std::span<const std::byte> bytes, Layout layout, int vocabulary, std::string where, std::uint64_t before = 0);

  std::uint64_t size() const { return size_; }
  /// `size` tokens from token `first` on; messages still count from the file's first token.
  Tokens part(std::uint64_t first, std::uint64_t size) const;
  /// These tokens, which keep the mapping of the file with their bytes.
  Tokens kept_by(std::shared_ptr<const MappedFile> file) const;
  /// These tokens, which keep the memory with their bytes.
  Tokens kept_in(std::shared_ptr<const std::vector<std::byte>> memory) const;

  /// These tokens as those of several files: a file begins at each of these places, in increasing order.
  Tokens with_files_at(std::vector<std::uint64_t> places) const;

  /// The places in [first, first + count) where a file begins, except the first file.
  std::vector<std::uint64_t> files_in(std::uint64_t first, std::uint64_t count) const;
  /// Copies the tokens from `first` on. They are checked first: a file is too large to check before each run.
  /// Throws: the errors of check(); ConfigError if the file has been cut since it was opened.
  void read(std::uint64_t first, std::span<std::int32_t> tokens) const;
  /// Throws: ConfigError that names the first of these tokens that the model does not have, or the first byte that is
  /// not UTF-8.
  void check(std::uint64_t first, std::uint64_t count) const;

 private:
  void check_text(std::uint64_t begin, std::uint64_t end) const;
  void check_vocabulary(std::uint64_t begin, std::uint64_t end) const;

  std::shared_ptr<const MappedFile> file_;  ///< shared by the parts of a corpus; null if the bytes are borrowed
  /// Shared by the parts of a corpus; null if the bytes are elsewhere.
  std::shared_ptr<const std::vector<std::byte>> memory_;
  std::span<const std::byte> bytes_;  ///< bytes of all the file's tokens
  Layout layout_ = Layout::kUint16;
  int vocabulary_ = 0;
  std::string where_;
  std::uint64_t first_ = 0;  ///< first token of this part
  std::uint64_t size_ = 0;
  std::uint64_t before_ = 0;            ///< tokens of the file before bytes_
  std::vector<std::uint64_t> files_{};  ///< first tokens of files, except the first file, in bytes_
};

/// Number of a file's first tokens that are checked when it is opened: mostly all. The others are checked when read.
inline constexpr std::uint64_t kTokensCheckedFirst = std::uint64_t{1} << 26U;

/// Bytes of llm.c's header. A file's number of tokens follows from the header and the file's size.
inline constexpr std::uint64_t kTokenHeaderBytes = 1024;

/// The number of tokens in a token file of `file_bytes` bytes. `head` has its first bytes: kTokenHeadBytes of
/// token_format.h, more, or all. The tokens are the file's last bytes. Throws: as parse_tokens() for a header or
/// format.
std::uint64_t count_tokens(std::span<const std::byte> head, std::uint64_t file_bytes, TokenFormat format,
                           const std::string& where);

/// The bytes of a text as tokens. `where` names the file in messages.
/// Throws: ConfigError if vocabulary < 256; with the byte offset, if the beginning of the text is not UTF-8.
Tokens parse_text(std::span<const std::byte> file, int vocabulary, const std::string& where);

/// The tokens of a token file. kAuto takes llm.c's layout if the file begins with its magic number.
/// Throws: ConfigError for a header that is short, of another magic or version, or with a count that is not the number
/// of tokens in the file; for a headerless file of an odd number of bytes, or one that other_format() of token_format.h
/// knows, with the format's name; for one of the first tokens that is not below `vocabulary`, with the likely cause.
Tokens parse_tokens(std::span<const std::byte> file, TokenFormat format, int vocabulary, const std::string& where);

/// The tokens of the file that `data` names: text, or tokens. Memory: only the file's pages, which processes share.
/// Throws: the errors of parse_text() and parse_tokens(); ConfigError for a file that cannot be read.
Tokens open_tokens(const DataConfig& data, int vocabulary);

/// Whether the file begins with the magic number of llm.c's layout; false if it cannot be read.
bool has_llmc_magic(const std::string& path);

}  // namespace droptest::experiments
