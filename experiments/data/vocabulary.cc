// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/vocabulary.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "comm/spec/sha256.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

void add_token(const std::string& token, const json& number, const std::string& where,
               std::map<std::string, std::int32_t>& tokens) {
  if (!number.is_number_unsigned() || number.get<std::uint64_t>() > 0x7fffffff) {
    throw ConfigError(where + ": token " + comm::quote_json(token) + ": got number " + comm::quote_json(number));
  }
  const auto [known, is_new] = tokens.emplace(token, number.get<std::int32_t>());
  if (!is_new && known->second != number.get<std::int32_t>()) {
    throw ConfigError(where + ": token " + comm::quote_json(token) + " has the numbers " +
                      std::to_string(known->second) + " and " + number.dump());
  }
}

/// A merge in a text: "left right", with one blank.
Vocabulary::Merge merge_of(const std::string& text, const std::string& where) {
  const std::size_t blank = text.find(' ');
  if (blank == 0 || blank == std::string::npos || blank + 1 == text.size() ||
      text.find(' ', blank + 1) != std::string::npos) {
    throw ConfigError(where + ": got " + comm::quote_json(text) + ", want two tokens with a blank between them");
  }
  return {text.substr(0, blank), text.substr(blank + 1)};
}

std::map<std::string, std::int32_t> tokens_in(const json& object, const std::string& where) {
  if (!object.is_object())
    throw ConfigError(where + ": got " + comm::quote_json(object) + ", want an object of tokens");
  std::map<std::string, std::int32_t> tokens;
  for (const auto& [token, number] : object.items()) add_token(token, number, where, tokens);
  return tokens;
}

constexpr const char* kEndToken = "<|endoftext|>";

/// The member `added_tokens` of a tokenizer.json, each with content, number and flags of the right type.
json added_tokens_in(const json& document, const std::string& path) {
  const json added = document.value("added_tokens", json());
  if (added.is_null()) return json::array();
  const auto refuse = [&path](const json& got, const char* wanted) {
    throw ConfigError(path + ": /added_tokens: got " + comm::quote_json(got) + ", want " + wanted);
  };
  if (!added.is_array()) refuse(added, "a list");
  for (const json& token : added) {
    if (!token.is_object() || !token.value("content", json()).is_string() || !token.contains("id")) {
      refuse(token, "an object with content, a text, and id");
    }
    for (const char* flag : {"special", "single_word", "lstrip", "rstrip", "normalized"}) {
      if (!token.value(flag, json(false)).is_boolean()) refuse(token, "flags that are true or false");
    }
  }
  return added;
}

/// A merge of a tokenizer.json: a text, or in newer ones a pair.
Vocabulary::Merge merge_of_json(const json& merge, const std::string& where) {
  if (merge.is_string()) return merge_of(merge, where);
  if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) {
    throw ConfigError(where + ": got " + comm::quote_json(merge) + ", want a text or a list of two");
  }
  return {merge[0], merge[1]};
}

/// Reads added tokens, and the effect on texts of the other members of a tokenizer.json with a model of byte pairs.
class RulesReader {
 public:
  RulesReader(const json& document, const std::string& path)
      : path_(path), has_normalizer_(!document.value("normalizer", json()).is_null()) {
    if (has_normalizer_) {
      settings_["normalizer"] = document["normalizer"];
      refuse("/normalizer", document["normalizer"], "null");
    }
    read_pre_tokenizer(document.value("pre_tokenizer", json()));
    read_model(document["model"]);
    for (const json& added : added_tokens_in(document, path)) read_added(added);
  }

  TextRules take() {
    json added = json::array();
    for (const auto& [number, token] : found_) added.push_back(token);
    if (!added.empty()) settings_["added_tokens"] = added;
    if (!settings_.empty()) rules_.settings = comm::canonical_json(settings_);
    return std::move(rules_);
  }

  /// The entry of a token that no member of the file calls special.
  static json plain_token(const json& number, const std::string& content) {
    return {{"id", number},    {"content", content}, {"single_word", false},
            {"lstrip", false}, {"rstrip", false},    {"normalized", false}};
  }

 private:
  void refuse(const std::string& pointer, const json& got, const std::string& wanted) {
    if (!rules_.refusal.empty()) return;
    rules_.refusal = path_ + ": " + pointer + ": got " + comm::quote_json(got) + ", want " + wanted;
  }

  void read_pre_tokenizer(json member) {
    const json given = member;
    const bool is_byte_level = member.is_object() && member.value("type", json()) == "ByteLevel";
    if (is_byte_level) {
      member.erase("trim_offsets");
      if (member.value("use_regex", json()) == true) member.erase("use_regex");
      rules_.prefix_blank = member.value("add_prefix_space", json()) == true;
      rules_.cuts_words = member.value("use_regex", json(true)) == true;
    } else {
      refuse("/pre_tokenizer", given, R"({"type": "ByteLevel"})");
    }
    if (member != json{{"type", "ByteLevel"}, {"add_prefix_space", false}}) settings_["pre_tokenizer"] = member;
  }

  void read_model(const json& model) {
    json set = json::object();
    for (const char* name : {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const json value = model.value(name, json());
      if (!value.is_null() && value != "") set[name] = value;
    }
    for (const char* name : {"fuse_unk", "byte_fallback", "ignore_merges"}) {
      if (model.value(name, json(false)) == true) set[name] = true;
    }
    for (const auto& [name, value] : set.items()) {
      // Bytes without a token are refused only if a text has one.
      if (name != "unk_token" && name != "fuse_unk") refuse("/model/" + name, value, value == true ? "false" : "none");
    }
    if (!set.empty()) settings_["model"] = set;
  }

  void read_added(const json& added) {
    const std::string content = added["content"];
    const auto flag = [&added](const char* name) { return added.value(name, false); };
    const bool normalized = has_normalizer_ && flag("normalized");
    rules_.added.push_back({content, added["id"], flag("special"), normalized});
    if (flag("special")) return;
    json token = plain_token(added["id"], content);
    for (const char* name : {"single_word", "lstrip", "rstrip"}) {
      token[name] = flag(name);
      if (flag(name)) refuse("/added_tokens: " + comm::quote_json(content) + ": " + name, true, "false");
    }
    token["normalized"] = normalized;
    found_[added["id"].get<std::int64_t>()] = token;
  }

  const std::string& path_;
  bool has_normalizer_;
  json settings_ = json::object();
  std::map<std::int64_t, json> found_;
  TextRules rules_;
};

/// The character that GPT-2's files write for each byte, in UTF-8: printable ones stand for themselves, the others for
/// the characters from 256 on. Source: bytes_to_unicode() of GPT-2's encoder.
const std::array<std::string, 256>& printable_bytes() {
  static const std::array<std::string, 256> characters = [] {
    std::array<std::string, 256> all;
    unsigned next = 256;
    for (unsigned byte = 0; byte < all.size(); ++byte) {
      const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const unsigned point = prints ? byte : next++;
      if (point < 0x80) {
        all[byte] = static_cast<char>(point);
      } else {
        all[byte] = {static_cast<char>(0xc0U | point >> 6U), static_cast<char>(0x80U | (point & 0x3fU))};
      }
    }
    return all;
  }();
  return characters;
}

/// The words of a text in ASCII, within which bytes are merged. Source: the pattern of GPT-2's encoder,
/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::vector<std::string_view> words_of(std::string_view text) {
  enum class Kind : std::uint8_t { kLetter, kDigit, kBlank, kOther };
  const auto kind_of = [&](std::size_t i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z')) return Kind::kLetter;
    if (byte >= '0' && byte <= '9') return Kind::kDigit;
    return byte == ' ' || (byte >= 9 && byte <= 13) ? Kind::kBlank : Kind::kOther;
  };
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin;
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (end == begin && text.substr(begin).starts_with(ending)) end = begin + ending.size();
    }
    if (end == begin) {
      const std::size_t first = begin + (text[begin] == ' ' && begin + 1 < text.size() ? 1 : 0);
      const Kind kind = kind_of(first);
      end = first + 1;
      if (kind != Kind::kBlank) {
        while (end < text.size() && kind_of(end) == kind) ++end;
      } else {
        end = begin + 1;
        while (end < text.size() && kind_of(end) == Kind::kBlank) ++end;
        // The last blank belongs to the word behind it.
        if (end < text.size() && end - begin > 1) --end;
      }
    }
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

/// Calls plain(piece) for each piece of the text between added tokens and token(number) for each of these: from left to
/// right, the longest of those that begin at one place.
template <class Plain, class Token>
void split_at_added(std::string_view text, const std::vector<const TextRules::Added*>& added, const Plain& plain,
                    const Token& token) {
  std::size_t begin = 0;
  std::size_t place = 0;
  while (place < text.size()) {
    const TextRules::Added* longest = nullptr;
    for (const TextRules::Added* one : added) {
      const bool is_here = !one->content.empty() && text.substr(place).starts_with(one->content);
      if (is_here && (longest == nullptr || one->content.size() > longest->content.size())) longest = one;
    }
    if (longest == nullptr) {
      ++place;
      continue;
    }
    const std::size_t end = place + longest->content.size();
    if (!longest->special) {
      if (place > begin) plain(text.substr(begin, place - begin));
      token(longest->number);
      begin = end;
    }
    place = end;
  }
  if (begin < text.size()) plain(text.substr(begin));
}

}  // namespace

Vocabulary::Vocabulary(std::map<std::string, std::int32_t> tokens, std::vector<Merge> merges, TextRules rules,
                       const std::string& where)
    : numbers_(std::move(tokens)), merges_(std::move(merges)), rules_(std::move(rules)) {
  for (std::size_t i = 0; i < merges_.size(); ++i) ranks_.emplace(merges_[i], i);
  for (const auto& [token, number] : numbers_) {
    const auto [known, is_new] = tokens_.emplace(number, token);
    if (is_new) continue;
    throw ConfigError(where + ": tokens " + comm::quote_json(known->second) + " and " + comm::quote_json(token) +
                      " have the number " + std::to_string(number));
  }
  if (rules_.refusal.empty()) check_merges(where);
}

Vocabulary Vocabulary::of_other_kind(std::string hash, std::string refusal) {
  Vocabulary vocabulary;
  vocabulary.other_hash_ = std::move(hash);
  vocabulary.rules_.refusal = std::move(refusal);
  return vocabulary;
}

void Vocabulary::check_merges(const std::string& where) const {
  for (const auto& [left, right] : merges_) {
    for (const std::string& part : {left, right, left + right}) {
      if (number_of(part)) continue;
      throw ConfigError(where + ": the merge " + comm::quote_json(left + " " + right) + " has " +
                        comm::quote_json(part) + ", want tokens alone");
    }
  }
}

std::optional<std::int32_t> Vocabulary::number_of(const std::string& token) const {
  const auto found = numbers_.find(token);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

bool Vocabulary::is_bytes() const {
  if (!merges_.empty() || !rules_.settings.empty() || !rules_.refusal.empty()) return false;
  for (std::size_t byte = 0; byte < printable_bytes().size(); ++byte) {
    if (number_of(printable_bytes()[byte]) != static_cast<std::int32_t>(byte)) return false;
  }
  return true;
}

std::vector<std::int32_t> Vocabulary::encode(const std::string& text) const {
  if (!rules_.refusal.empty()) {
    throw ConfigError(rules_.refusal +
                      ", for texts to become tokens; tokens of scripts/tokenize are read all the same");
  }
  const auto is_ascii = [](char byte) { return static_cast<unsigned char>(byte) < 0x80; };
  if (const auto other = std::find_if_not(text.begin(), text.end(), is_ascii); other != text.end()) {
    throw ConfigError("text: byte " + std::to_string(other - text.begin()) +
                      " is not ASCII, want ASCII text, or tokens of scripts/tokenize");
  }
  std::vector<std::int32_t> numbers;
  std::vector<const TextRules::Added*> first;  // tokens that are sought in the text as it is
  std::vector<const TextRules::Added*> then;   // tokens that are sought in the rest
  for (const TextRules::Added& one : rules_.added) (one.normalized ? then : first).push_back(&one);
  const auto add = [&numbers](std::int32_t number) { numbers.push_back(number); };
  split_at_added(
      text, first,
      [&](std::string_view piece) {
        split_at_added(
            piece, then, [&](std::string_view plain) { encode_plain(plain, numbers); }, add);
      },
      add);
  return numbers;
}

void Vocabulary::encode_plain(std::string_view text, std::vector<std::int32_t>& numbers) const {
  const std::string prefixed = (rules_.prefix_blank && !text.starts_with(' ') ? " " : "") + std::string(text);
  const std::vector<std::string_view> words = words_of(prefixed);
  if (!rules_.cuts_words) return encode_word(prefixed, numbers);
  for (const std::string_view word : words) encode_word(word, numbers);
}

void Vocabulary::encode_word(std::string_view word, std::vector<std::int32_t>& numbers) const {
  std::vector<std::string> parts;
  for (const char byte : word) parts.push_back(printable_bytes()[static_cast<unsigned char>(byte)]);
  // The merge that was learned first comes first.
  for (;;) {
    std::size_t best = merges_.size();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks_.find({parts[i], parts[i + 1]});
      if (found == ranks_.end() || found->second >= best) continue;
      best = found->second;
      at = i;
    }
    if (best == merges_.size()) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  for (const std::string& part : parts) {
    const std::optional<std::int32_t> number = number_of(part);
    if (!number) {
      throw ConfigError("text " + comm::quote_json(std::string(word)) + ": the vocabulary has no token " +
                        comm::quote_json(part));
    }
    numbers.push_back(*number);
  }
}

std::string Vocabulary::decode(std::span<const std::int32_t> tokens) const {
  std::map<std::string, char> bytes;
  for (std::size_t byte = 0; byte < printable_bytes().size(); ++byte) {
    bytes.emplace(printable_bytes()[byte], static_cast<char>(byte));
  }
  std::string text;
  for (const std::int32_t token : tokens) {
    const auto found = tokens_.find(token);
    if (found == tokens_.end()) continue;
    const std::string& spelled = found->second;
    for (std::size_t i = 0; i < spelled.size();) {
      const std::size_t length = (static_cast<unsigned char>(spelled[i]) & 0xe0U) == 0xc0U ? 2 : 1;
      const auto byte = bytes.find(spelled.substr(i, length));
      if (byte == bytes.end()) {
        text += spelled.substr(i);  // an added token, which is text
        break;
      }
      text += byte->second;
      i += length;
    }
  }
  return text;
}

std::string Vocabulary::hash() const {
  if (other_hash_) return *other_hash_;
  comm::Sha256 hash;
  for (const auto& [number, token] : tokens_) hash.add(std::to_string(number) + " " + token + "\n");
  hash.add("\n");
  for (const auto& [left, right] : merges_) hash.add(left + " " + right + "\n");
  if (!rules_.settings.empty()) hash.add("\n" + rules_.settings + "\n");
  return hash.hex();
}

Vocabulary parse_tokenizer_json(std::string_view text, const std::string& path) {
  const json document = comm::parse_json(text, path);
  const json model = document.is_object() ? document.value("model", json()) : json();
  // Early files have no type: a WordPiece model has no merges, and a Unigram model has a list as vocabulary.
  const bool is_untyped = model.is_object() && !model.contains("type") && model.contains("vocab");
  const bool is_other = is_untyped ? !model.contains("merges") || !model["vocab"].is_object()
                                   : model.is_object() && model.value("type", json("BPE")) != "BPE";
  if (is_other) {
    comm::Sha256 hash;
    hash.add(text);
    const std::string got = is_untyped ? "nothing, and a vocabulary of another kind" : comm::quote_json(model["type"]);
    return Vocabulary::of_other_kind(hash.hex(), path + ": /model/type: got " + got + ", want \"BPE\"");
  }
  if (!model.is_object() || !model.contains("vocab") || !model.contains("merges")) {
    throw ConfigError(path + ": /model: want a model of type \"BPE\" with vocab and merges");
  }
  std::map<std::string, std::int32_t> tokens = tokens_in(model["vocab"], path + ": /model/vocab");
  for (const json& added : added_tokens_in(document, path)) {
    add_token(added["content"], added["id"], path + ": /added_tokens", tokens);
  }
  std::vector<Vocabulary::Merge> merges;
  if (!model["merges"].is_array()) {
    throw ConfigError(path + ": /model/merges: got " + comm::quote_json(model["merges"]) + ", want a list");
  }
  for (const json& merge : model["merges"]) merges.push_back(merge_of_json(merge, path + ": /model/merges"));
  return {std::move(tokens), std::move(merges), RulesReader(document, path).take(), path};
}

Vocabulary parse_gpt2_files(const Gpt2Texts& texts, const std::string& folder) {
  const auto path = [&folder](const char* name) { return (std::filesystem::path(folder) / name).string(); };
  std::vector<Vocabulary::Merge> merges;
  const std::string& text = texts.merges;
  std::uint64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (++number == 1 && line.starts_with("#version")) continue;
    if (!line.empty()) merges.push_back(merge_of(line, path("merges.txt") + ": line " + std::to_string(number)));
  }
  std::map<std::string, std::int32_t> tokens =
      tokens_in(comm::parse_json(texts.vocabulary, path("vocab.json")), path("vocab.json"));
  TextRules rules;
  if (texts.added) {
    const std::string added_file = path("added_tokens.json");
    const json numbers = comm::parse_json(*texts.added, added_file);
    std::map<std::int32_t, json> in_texts;
    for (const auto& [token, of_token] : tokens_in(numbers, added_file)) {
      add_token(token, numbers[token], added_file, tokens);
      const bool ends = token == kEndToken;
      rules.added.push_back({token, of_token, ends, false});
      if (!ends) in_texts[of_token] = RulesReader::plain_token(of_token, token);
    }
    json added = json::array();
    for (const auto& [of_token, token] : in_texts) added.push_back(token);
    if (!added.empty()) rules.settings = comm::canonical_json({{"added_tokens", added}});
  }
  return {std::move(tokens), std::move(merges), std::move(rules), path("vocab.json")};
}

std::vector<std::string> other_tokenizer_files(const std::string& folder) {
  std::vector<std::string> names = {"sentencepiece.bpe.model", "spiece.model", "tokenizer.model", "vocab.txt"};
  std::erase_if(names, [&](const std::string& name) {
    return !std::filesystem::is_regular_file(std::filesystem::path(folder) / name);
  });
  return names;
}

std::string tokenizer_folder(std::initializer_list<std::string> weights, int vocabulary) {
  namespace fs = std::filesystem;
  constexpr int kBytes = 256;
  for (const std::string& path : weights) {
    if (path.empty() || (vocabulary == kBytes && !fs::is_directory(path))) continue;
    const fs::path parent = fs::path(path).parent_path();
    const std::string folder = fs::is_directory(path) ? path : parent.empty() ? "." : parent.string();
    if (fs::exists(fs::path(folder) / "tokenizer.json") || fs::exists(fs::path(folder) / "vocab.json") ||
        !other_tokenizer_files(folder).empty()) {
      return folder;
    }
  }
  return "";
}

std::optional<Vocabulary> read_vocabulary(const std::string& folder) {
  const std::filesystem::path root(folder);
  const auto path = [&root](const char* name) { return (root / name).string(); };
  if (std::filesystem::exists(path("tokenizer.json"))) {
    return parse_tokenizer_json(comm::read_file(path("tokenizer.json")), path("tokenizer.json"));
  }
  if (!std::filesystem::exists(path("vocab.json"))) {
    const std::vector<std::string> others = other_tokenizer_files(folder);
    if (others.empty()) return std::nullopt;
    return Vocabulary::of_other_kind("", path(others.front().c_str()) +
                                             ": got a vocabulary that is not GPT-2's, want " +
                                             "tokenizer.json, or vocab.json and merges.txt");
  }
  Gpt2Texts texts{comm::read_file(path("vocab.json")), comm::read_file(path("merges.txt")), std::nullopt};
  if (std::filesystem::exists(path("added_tokens.json"))) texts.added = comm::read_file(path("added_tokens.json"));
  return parse_gpt2_files(texts, folder);
}

std::string tokenize_call(const std::string& text, const std::string& kind, const std::string& folder) {
  const std::filesystem::path root(folder);
  const std::string file = (root / "tokenizer.json").string();
  const bool is_gpt2 = !std::filesystem::exists(file) && std::filesystem::exists(root / "vocab.json");
  const std::string tokenizer = is_gpt2
                                    ? "--gpt2 " + (root / "vocab.json").string() + " " + (root / "merges.txt").string()
                                    : "--tokenizer " + file;
  // The text may itself end in .bin or .jsonl, and is not to be overwritten.
  const std::filesystem::path out =
      std::filesystem::path(text).replace_extension(kind.empty() ? ".tokens.bin" : ".tokens.jsonl");
  return "scripts/tokenize " + text + kind + " " + tokenizer + " --out " + out.string() +
         (is_gpt2 || std::filesystem::exists(file)
              ? ""
              : ", once save_pretrained() of the tokenizer in Hugging Face's library has written " + file);
}

}  // namespace droptest::experiments
