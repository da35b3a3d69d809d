// SPDX-License-Identifier: Apache-2.0
// The vocabulary of a byte-level byte-pair tokenizer, as Hugging Face's files have it (docs/formats.md).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace droptest::experiments {

/// The rules by which texts become tokens, in addition to tokens and merges. The initial values are GPT-2's.
struct TextRules {
  /// An added token. Texts that spell it become it; a special one stays text.
  struct Added {
    std::string content;
    std::int32_t number = 0;
    bool special = false;
    bool normalized = false;  ///< whether it is sought after those that are not normalized
  };
  bool prefix_blank = false;  ///< whether a text without a blank in front gets one
  bool cuts_words = true;     ///< whether merges stay within words
  std::vector<Added> added;
  /// All that changes tokens and is not GPT-2's, as canonical JSON; empty: nothing.
  std::string settings;
  /// The reason why texts are not encoded: the member of the file that is not honoured; empty: they are encoded.
  std::string refusal;
};

/// Tokens and merges, in the spelling of GPT-2's files: each byte is a printable character. Thread safety: const.
class Vocabulary {
 public:
  using Merge = std::pair<std::string, std::string>;
  /// Throws: ConfigError that names the source `where`, for two tokens of one number and, if texts are encoded, for a
  /// merge of parts or to a result that are no tokens.
  Vocabulary(std::map<std::string, std::int32_t> tokens, std::vector<Merge> merges, TextRules rules,
             const std::string& where);
  /// A vocabulary that encodes nothing, of a tokenizer of another kind with this hash; empty: the hash is not known.
  static Vocabulary of_other_kind(std::string hash, std::string refusal);

  /// One more than the largest number of a token; 0 for another kind of tokenizer.
  std::int32_t size() const { return tokens_.empty() ? 0 : tokens_.rbegin()->first + 1; }
  /// The number of a token; absent: there is no such token.
  std::optional<std::int32_t> number_of(const std::string& token) const;
  /// The hash of docs/formats.md: equal for all files that make the same tokens of all texts. Empty: not known.
  std::string hash() const;
  /// The reason why encode() refuses each text; empty: it does not.
  const std::string& refusal() const { return rules_.refusal; }
  /// Whether the tokens of a text are its bytes.
  bool is_bytes() const;
  /// GPT-2's byte-pair encoding, without the tokens that a tokenizer may put around a text. Throws: ConfigError with
  /// refusal(); for a text that is not ASCII, because tables of Unicode decide how other characters are cut into words;
  /// and for a byte without a token.
  std::vector<std::int32_t> encode(const std::string& text) const;
  /// The bytes of tokens. Numbers without a token are left out.
  std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  Vocabulary() = default;
  void check_merges(const std::string& where) const;
  void encode_plain(std::string_view text, std::vector<std::int32_t>& numbers) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& numbers) const;

  std::map<std::int32_t, std::string> tokens_;
  std::map<std::string, std::int32_t> numbers_;
  std::vector<Merge> merges_;
  std::map<Merge, std::size_t> ranks_;  ///< ranks of merges
  TextRules rules_;
  std::optional<std::string> other_hash_;  ///< hash of a tokenizer without byte pairs; absent: it has them
};

/// The vocabulary in the text of a tokenizer.json at `path`. Throws: ConfigError that names the file and the member.
Vocabulary parse_tokenizer_json(std::string_view text, const std::string& path);

/// The texts of vocab.json, merges.txt and, if it is there, added_tokens.json.
struct Gpt2Texts {
  std::string vocabulary;
  std::string merges;
  std::optional<std::string> added;
};
/// The vocabulary of these texts, which are in `folder`. Throws: ConfigError that names the file.
Vocabulary parse_gpt2_files(const Gpt2Texts& texts, const std::string& folder);

/// Names, sorted, of the files of a folder that hold a vocabulary of WordPiece (vocab.txt) or of SentencePiece, as
/// Hugging Face's library names them.
std::vector<std::string> other_tokenizer_files(const std::string& folder);

/// The first folder with a tokenizer among those of these weights, each a folder of Hugging Face's files or a file of
/// weights. The folder of a file counts only if the model's `vocabulary` is not the 256 bytes. Empty: none has one.
std::string tokenizer_folder(std::initializer_list<std::string> weights, int vocabulary);

/// The vocabulary of a folder with tokenizer.json, or else with vocab.json, merges.txt and added_tokens.json, or else
/// with a vocabulary of another kind; absent: it has none of them. Throws: ConfigError that names the file.
std::optional<Vocabulary> read_vocabulary(const std::string& folder);

/// The call of scripts/tokenize that makes tokens of a text with the folder's tokenizer, and its preconditions; `kind`
/// is "" or " --examples LAYOUT".
std::string tokenize_call(const std::string& text, const std::string& kind, const std::string& folder);

}  // namespace droptest::experiments
