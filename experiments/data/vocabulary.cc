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

/// "left right", with one blank.
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

Vocabulary of_tokenizer_json(const std::string& path) {
  const json document = comm::load_json(path);
  const json model = document.is_object() ? document.value("model", json()) : json();
  if (!model.is_object() || model.value("type", "BPE") != "BPE" || !model.contains("vocab") ||
      !model.contains("merges")) {
    throw ConfigError(path + ": /model: want a model of type \"BPE\" with vocab and merges");
  }
  std::map<std::string, std::int32_t> tokens = tokens_in(model["vocab"], path + ": /model/vocab");
  for (const json& added : document.value("added_tokens", json::array())) {
    add_token(added.at("content"), added.at("id"), path + ": /added_tokens", tokens);
  }
  std::vector<Vocabulary::Merge> merges;
  for (const json& merge : model["merges"]) {
    if (merge.is_string()) {
      merges.push_back(merge_of(merge, path + ": /model/merges"));
    } else {
      merges.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
    }
  }
  return {std::move(tokens), std::move(merges), path};
}

Vocabulary of_gpt2_files(const std::string& vocabulary, const std::string& merges_file) {
  std::vector<Vocabulary::Merge> merges;
  const std::string text = comm::read_file(merges_file);
  std::uint64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (++number == 1 && line.starts_with("#version")) continue;
    if (!line.empty()) merges.push_back(merge_of(line, merges_file + ": line " + std::to_string(number)));
  }
  return {tokens_in(comm::load_json(vocabulary), vocabulary), std::move(merges), vocabulary};
}

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

/// The words of an ASCII text, within which bytes are merged. Source: the pattern of GPT-2's encoder,
/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::vector<std::string_view> words_of(std::string_view text) {
  enum class Kind : std::uint8_t { kLetter, kDigit, kBlank, kOther };
  const auto kind_of = [&](std::size_t i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x80) {
      throw ConfigError("text: byte " + std::to_string(i) +
                        " is not ASCII, want ASCII text, or tokens of scripts/tokenize");
    }
    if ((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z')) return Kind::kLetter;
    if (byte >= '0' && byte <= '9') return Kind::kDigit;
    return byte == ' ' || (byte >= 9 && byte <= 13) || (byte >= 28 && byte <= 31) ? Kind::kBlank : Kind::kOther;
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

}  // namespace

Vocabulary::Vocabulary(std::map<std::string, std::int32_t> tokens, std::vector<Merge> merges, const std::string& where)
    : numbers_(std::move(tokens)), merges_(std::move(merges)) {
  for (std::size_t i = 0; i < merges_.size(); ++i) ranks_.emplace(merges_[i], i);
  for (const auto& [token, number] : numbers_) {
    const auto [known, is_new] = tokens_.emplace(number, token);
    if (is_new) continue;
    throw ConfigError(where + ": tokens " + comm::quote_json(known->second) + " and " + comm::quote_json(token) +
                      " have the number " + std::to_string(number));
  }
}

std::optional<std::int32_t> Vocabulary::number_of(const std::string& token) const {
  const auto found = numbers_.find(token);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::int32_t> Vocabulary::encode(const std::string& text) const {
  std::vector<std::int32_t> numbers;
  for (const std::string_view word : words_of(text)) {
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
      if (!number)
        throw ConfigError("text " + comm::quote_json(text) + ": the vocabulary has no token " + comm::quote_json(part));
      numbers.push_back(*number);
    }
  }
  return numbers;
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
  comm::Sha256 hash;
  for (const auto& [number, token] : tokens_) hash.add(std::to_string(number) + " " + token + "\n");
  hash.add("\n");
  for (const auto& [left, right] : merges_) hash.add(left + " " + right + "\n");
  return hash.hex();
}

std::optional<Vocabulary> read_vocabulary(const std::string& folder) {
  const std::filesystem::path root(folder);
  const auto path = [&root](const char* name) { return (root / name).string(); };
  try {
    if (std::filesystem::exists(path("tokenizer.json"))) return of_tokenizer_json(path("tokenizer.json"));
    if (!std::filesystem::exists(path("vocab.json"))) return std::nullopt;
    return of_gpt2_files(path("vocab.json"), path("merges.txt"));
  } catch (const json::exception& error) {
    throw ConfigError(folder + ": its tokenizer: " + error.what());
  }
}

std::string vocabulary_hash_of(const std::string& token_file) {
  const std::filesystem::path sidecar = std::filesystem::path(token_file).replace_extension(".json");
  if (sidecar == token_file || !std::filesystem::is_regular_file(sidecar)) return "";
  const json about = comm::load_json(sidecar.string());
  if (!about.is_object() || !about.contains("vocabulary_sha256")) return "";
  if (about["vocabulary_sha256"].is_string()) return about["vocabulary_sha256"];
  throw ConfigError(sidecar.string() + ": /vocabulary_sha256: got " + comm::quote_json(about["vocabulary_sha256"]) +
                    ", want a text, as scripts/tokenize writes it");
}

}  // namespace droptest::experiments
