// SPDX-License-Identifier: Apache-2.0
// The vocabulary of a byte-level byte-pair tokenizer, as Hugging Face's files have it (docs/formats.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace droptest::experiments {

/// Tokens and merges, in the spelling of GPT-2's files: each byte is a printable character. Thread safety: const.
class Vocabulary {
 public:
  using Merge = std::pair<std::string, std::string>;
  /// Throws: ConfigError, where `where` names the source, for two tokens of one number.
  Vocabulary(std::map<std::string, std::int32_t> tokens, std::vector<Merge> merges, const std::string& where);

  /// One more than the largest number of a token.
  std::int32_t size() const { return tokens_.empty() ? 0 : tokens_.rbegin()->first + 1; }
  /// The number of a token; absent: there is no such token.
  std::optional<std::int32_t> number_of(const std::string& token) const;
  /// SHA-256 of "<number> <token>\n" for each token in the order of numbers, an empty line, and "<left> <right>\n" for
  /// each merge: equal for all files that have the same vocabulary.
  std::string hash() const;
  /// GPT-2's byte-pair encoding. Throws: ConfigError for a text that is not ASCII: how other characters are cut into
  /// words depends on tables of Unicode; and for a byte without a token.
  std::vector<std::int32_t> encode(const std::string& text) const;
  /// The bytes of tokens. Numbers without a token are left out.
  std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  std::map<std::int32_t, std::string> tokens_;
  std::map<std::string, std::int32_t> numbers_;
  std::vector<Merge> merges_;
  std::map<Merge, std::size_t> ranks_;  ///< of merges
};

/// Of a folder with tokenizer.json, or else vocab.json and merges.txt; absent: it has none of them. Throws: ConfigError
/// that names the file.
std::optional<Vocabulary> read_vocabulary(const std::string& folder);

/// The vocabulary's hash in the file that scripts/tokenize writes next to a file of tokens: NAME.json for NAME.bin.
/// Empty: there is no such file, or it has no hash. Throws: ConfigError for a file that is not JSON, or a hash that is
/// no text.
std::string vocabulary_hash_of(const std::string& token_file);

}  // namespace droptest::experiments
