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
  /// All tokens in `bytes`, which are borrowed. `vocabulary`: of the model that reads them; `where` names the file, in
  /// which `before` tokens come first.
  Tokens(std::span<const std::byte> bytes, Layout layout, int vocabulary, std::string where, std::uint64_t before = 0);

  std::uint64_t size() const { return size_; }
  /// `size` tokens from token `first` on; messages still count from the file's first token.
  Tokens part(std::uint64_t first, std::uint64_t size) const;
  /// These tokens, which keep the file mapped that their bytes are of.
  Tokens kept_by(std::shared_ptr<const MappedFile> file) const;
  /// These tokens, which keep the memory that their bytes are in.
  Tokens kept_in(std::shared_ptr<const std::vector<std::byte>> memory) const;

  /// These tokens, which are those of several files: one begins at each of these places, in increasing order.
  Tokens with_files_at(std::vector<std::uint64_t> places) const;

  /// The places in [first, first + count) where a file begins, the first file's aside.
  std::vector<std::uint64_t> files_in(std::uint64_t first, std::uint64_t count) const;
  /// Copies the tokens from `first` on. They are checked first: a file is too large to check before each run.
  /// Throws: ConfigError as check(); where the file has been cut since it was opened.
  void read(std::uint64_t first, std::span<std::int32_t> tokens) const;
  /// Throws: ConfigError that names the first of these tokens that the model does not have, or the first byte that is
  /// not UTF-8.
  void check(std::uint64_t first, std::uint64_t count) const;

 private:
  void check_text(std::uint64_t begin, std::uint64_t end) const;
  void check_vocabulary(std::uint64_t begin, std::uint64_t end) const;

  std::shared_ptr<const MappedFile> file_;  ///< shared by the parts of a corpus; null where the bytes are borrowed
  std::shared_ptr<const std::vector<std::byte>> memory_;  ///< likewise; null where the bytes are elsewhere
  std::span<const std::byte> bytes_;                      ///< of all the file's tokens
  Layout layout_ = Layout::kUint16;
  int vocabulary_ = 0;
  std::string where_;
  std::uint64_t first_ = 0;  ///< where this part begins, in tokens
  std::uint64_t size_ = 0;
  std::uint64_t before_ = 0;            ///< tokens of the file before bytes_
  std::vector<std::uint64_t> files_{};  ///< the first tokens of files but the first, in bytes_
};

/// A file's first tokens, all of those of most files, are checked when it is opened; the others when they are read.
inline constexpr std::uint64_t kTokensCheckedFirst = std::uint64_t{1} << 26U;

/// Bytes of llm.c's header, which a file's number of tokens follows from, with its size.
inline constexpr std::uint64_t kTokenHeaderBytes = 1024;

/// The number of tokens in a token file of `file_bytes` bytes, of which `head` has the first ones: kTokenHeadBytes of
/// token_format.h, more, or all. The tokens are the file's last bytes. Throws: as parse_tokens() for a header or
/// format.
std::uint64_t count_tokens(std::span<const std::byte> head, std::uint64_t file_bytes, TokenFormat format,
                           const std::string& where);

/// The bytes of a text as tokens. `where` names the file in messages.
/// Throws: ConfigError where vocabulary < 256; with the byte offset where its beginning is not UTF-8.
Tokens parse_text(std::span<const std::byte> file, int vocabulary, const std::string& where);

/// The tokens of a token file. kAuto takes llm.c's layout where the file begins with its magic number.
/// Throws: ConfigError for a header that is short, of another magic or version, or with a count that is not the number
/// of tokens in the file; for a headerless file of an odd number of bytes, or that other_format() of token_format.h
/// knows, with the format's name; for one of the first tokens that is not below `vocabulary`, with the likely cause.
Tokens parse_tokens(std::span<const std::byte> file, TokenFormat format, int vocabulary, const std::string& where);

/// The tokens of the file that `data` names: text, or tokens. Memory: none but the file's pages, which processes share.
/// Throws: ConfigError as above; for a file that cannot be read.
Tokens open_tokens(const DataConfig& data, int vocabulary);

/// Whether the file begins with the magic number of llm.c's layout; false where it cannot be read.
bool has_llmc_magic(const std::string& path);

}  // namespace droptest::experiments
