// SPDX-License-Identifier: Apache-2.0
// tests/vectors/tokenizers.json has results of Hugging Face's tokenizers (scripts/make_tokenizer_vectors.py).
#include "experiments/data/vocabulary.h"
#include "experiments/data/token_sidecar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/json/read_file.h"
#include "sim/error.h"
#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::vocabulary_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

using Numbers = std::vector<std::int32_t>;

json entries() { return json::parse(comm::read_file(std::string(DROPTEST_VECTORS) + "/tokenizers.json")); }

json entry(const std::string& name) {
  for (json& one : entries()) {
    if (one["name"] == name) return one;
  }
  throw CheckError("no entry " + name);
}

/// A folder with files of a tokenizer.
class Folder {
 public:
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(folder_.path() + "/" + file, std::ios::binary) << text;
  }
  void write(const std::string& file, const json& document) const { write(file, document.dump()); }
  std::string at(const std::string& file) const { return folder_.path() + "/" + file; }
  Vocabulary read() const { return *read_vocabulary(folder_.path()); }
  std::string error() const {
    return config_error_of([this] { (void)read_vocabulary(folder_.path()); });
  }

 private:
  TemporaryFolder folder_;
};

Vocabulary of(const json& tokenizer) {
  const Folder folder;
  folder.write("tokenizer.json", tokenizer);
  return folder.read();
}

TEST(Vocabulary, EncodesAndHashesAsTheLibraryForEverySettingThatItHonours) {
  std::size_t texts = 0;
  for (const json& one : entries()) {
    const std::string name = one["name"];
    const Vocabulary vocabulary = of(one["tokenizer"]);
    EXPECT_EQ(vocabulary.hash(), one["sha256"].get<std::string>()) << name;
    EXPECT_EQ(vocabulary.refusal().empty(), !name.starts_with("refused_")) << name;
    for (const json& text : one.value("texts", json::array())) {
      EXPECT_EQ(vocabulary.encode(text["text"]), text["tokens"].get<Numbers>()) << name << ": " << text["text"];
      ++texts;
    }
  }
  EXPECT_GE(texts, 500U);
}

TEST(Vocabulary, SettingsThatAreNotHonouredAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"refused_normalizer", "/normalizer: got {\"type\":\"Lowercase\"}, want null"},
      {"refused_metaspace", "/pre_tokenizer: got {"},
      {"refused_suffix", "/model/end_of_word_suffix: got \"</w>\", want none"},
      {"refused_ignore_merges", "/model/ignore_merges: got true, want false"},
      {"refused_rstrip", "/added_tokens: \"<a>\": rstrip: got true"}};
  for (const auto& [name, what] : refused) {
    const Vocabulary vocabulary = of(entry(name)["tokenizer"]);
    EXPECT_THAT(config_error_of([&] { (void)vocabulary.encode("x"); }),
                AllOf(HasSubstr("tokenizer.json"), HasSubstr(what)));
    EXPECT_EQ(vocabulary.number_of("<|endoftext|>"), 290) << "tokens are known all the same";
  }
}

TEST(Vocabulary, EachSettingThatChangesTokensChangesTheHash) {
  std::map<std::string, std::string> names;
  for (const json& one : entries()) {
    const std::string name = one["name"] == "truncation_and_padding" ? "plain" : one["name"];
    const auto [known, is_new] = names.emplace(of(one["tokenizer"]).hash(), name);
    EXPECT_TRUE(is_new || known->second == name) << name << " has the hash of " << known->second;
  }
  EXPECT_EQ(names.size(), entries().size() - 1);
  json plain = entry("plain")["tokenizer"];
  const std::string hash = of(plain).hash();
  for (const auto& [pointer, value] :
       std::vector<std::pair<std::string, json>>{{"/truncation", {{"max_length", 512}}},
                                                 {"/padding", {{"pad_id", 0}}},
                                                 {"/post_processor", {{"type", "TemplateProcessing"}}},
                                                 {"/decoder", nullptr},
                                                 {"/model/dropout", 0.1},
                                                 {"/model/end_of_word_suffix", ""},
                                                 {"/pre_tokenizer/trim_offsets", false}}) {
    plain[json::json_pointer(pointer)] = value;
    EXPECT_EQ(of(plain).hash(), hash) << pointer;
  }
}

TEST(Vocabulary, SeparatorsOfFilesAreNoBlanks) {
  // U+001C to U+001F are no white space to \s: they join other characters.
  const Vocabulary vocabulary = of(entry("plain")["tokenizer"]);
  const Numbers alone = vocabulary.encode("\x1c");
  const Numbers word = vocabulary.encode("!\x1c");
  ASSERT_EQ(alone.size(), 1U);
  EXPECT_EQ(word.back(), alone[0]);
}

/// GPT-2's two files of the plain vocabulary.
void write_gpt2_files(const Folder& folder, const std::string& line_end) {
  const json model = entry("plain")["tokenizer"]["model"];
  std::string merges = "#version: 0.2" + line_end;
  for (const json& merge : model["merges"]) {
    merges += (merge.is_string() ? merge.get<std::string>()
                                 : merge[0].get<std::string>() + " " + merge[1].get<std::string>()) +
              line_end;
  }
  json tokens = model["vocab"];
  tokens["<|endoftext|>"] = 290;
  folder.write("vocab.json", tokens);
  folder.write("merges.txt", merges);
}

TEST(Vocabulary, LinesOfMergesMayEndInCrLf) {
  const std::string hash = of(entry("plain")["tokenizer"]).hash();
  for (const char* line_end : {"\n", "\r\n"}) {
    const Folder folder;
    write_gpt2_files(folder, line_end);
    EXPECT_EQ(folder.read().hash(), hash);
    EXPECT_EQ(folder.read().encode("the word").size(), of(entry("plain")["tokenizer"]).encode("the word").size());
  }
}

TEST(Vocabulary, AMergeOfWhatIsNoTokenIsRefused) {
  const Folder folder;
  folder.write("vocab.json", json{{"a", 0}, {"b", 1}, {"ab", 2}});
  folder.write("merges.txt", std::string("a b\na c\n"));
  EXPECT_THAT(folder.error(), HasSubstr("the merge \"a c\" has \"c\", want tokens alone"));
  folder.write("merges.txt", std::string("a b\nb a\n"));
  EXPECT_THAT(folder.error(), HasSubstr("the merge \"b a\" has \"ba\", want tokens alone"));
}

TEST(Vocabulary, AddedTokensOfGpt2sFilesAreSoughtInTextsAndHashed) {
  const Folder folder;
  write_gpt2_files(folder, "\n");
  const std::string without = folder.read().hash();
  folder.write("added_tokens.json", json{{"<user>", 291}});
  const Vocabulary vocabulary = folder.read();
  EXPECT_NE(vocabulary.hash(), without);
  EXPECT_EQ(vocabulary.size(), 292);
  EXPECT_EQ(vocabulary.encode("<user>"), Numbers{291});
  folder.write("added_tokens.json", json{{"<|endoftext|>", 290}});
  EXPECT_EQ(folder.read().hash(), without) << "which ends documents and is no text";
  folder.write("added_tokens.json", json{{"<user>", 5}});
  EXPECT_THAT(folder.error(), HasSubstr("have the number 5"));
}

TEST(Vocabulary, ATokenizerOfAnotherKindHasAHashAndNoTokens) {
  const Folder folder;
  const json word_piece = {{"model", {{"type", "WordPiece"}, {"vocab", {{"a", 0}}}}}};
  folder.write("tokenizer.json", word_piece);
  const Vocabulary vocabulary = folder.read();
  EXPECT_EQ(vocabulary.size(), 0);
  EXPECT_EQ(vocabulary.hash().size(), 64U);
  EXPECT_THAT(config_error_of([&] { (void)vocabulary.encode("a"); }),
              HasSubstr("/model/type: got \"WordPiece\", want \"BPE\""));
  folder.write("tokenizer.json", word_piece.dump() + " ");
  EXPECT_NE(folder.read().hash(), vocabulary.hash());
}

TEST(Vocabulary, EarlyFilesWithoutATypeAreOfTheirKind) {
  const auto read = [](const json& model) { return parse_tokenizer_json(json{{"model", model}}.dump(), "t.json"); };
  const json word_piece = {{"unk_token", "[UNK]"}, {"continuing_subword_prefix", "##"}, {"vocab", {{"a", 0}}}};
  const json unigram = {{"unk_id", 0}, {"vocab", json::array({json::array({"a", -1.5})})}};
  for (const json& model : {word_piece, unigram}) {
    const Vocabulary vocabulary = read(model);
    EXPECT_EQ(vocabulary.hash().size(), 64U);
    EXPECT_THAT(config_error_of([&] { (void)vocabulary.encode("a"); }),
                HasSubstr("t.json: /model/type: got nothing, and a vocabulary of another kind, want \"BPE\""));
  }
  json byte_pairs = entry("plain")["tokenizer"];
  const std::string hash = parse_tokenizer_json(byte_pairs.dump(), "t.json").hash();
  byte_pairs["model"].erase("type");
  EXPECT_EQ(parse_tokenizer_json(byte_pairs.dump(), "t.json").hash(), hash);
}

TEST(Vocabulary, MembersOfOtherTypesAreRefusedByTheirPlace) {
  const std::vector<std::tuple<std::string, json, std::string>> changes = {
      {"/added_tokens", 7, "/added_tokens: got 7, want a list"},
      {"/added_tokens/0", "x", "/added_tokens: got \"x\", want an object with content, a text, and id"},
      {"/added_tokens/0/id", "x", "/added_tokens: token \"<|endoftext|>\": got number \"x\""},
      {"/added_tokens/0/special", 1, "want flags that are true or false"},
      {"/model", nullptr, "/model: want a model of type \"BPE\" with vocab and merges"},
      {"/model/merges", "x y", "/model/merges: got \"x y\", want a list"},
      {"/model/merges/0", {"a"}, "/model/merges: got [\"a\"], want a text or a list of two"},
      {"/model/vocab", json::array(), "/model/vocab: got [], want an object of tokens"}};
  for (const auto& [pointer, value, message] : changes) {
    json tokenizer = entry("plain")["tokenizer"];
    tokenizer[json::json_pointer(pointer)] = value;
    EXPECT_THAT(config_error_of([&, &tokens = tokenizer] { (void)parse_tokenizer_json(tokens.dump(), "t.json"); }),
                AllOf(HasSubstr("t.json: "), HasSubstr(message)))
        << pointer;
  }
}

TEST(Vocabulary, DamagedFilesAreRefusedByName) {
  const std::string whole = entry("added")["tokenizer"].dump();
  std::uint32_t draw = 1;
  const auto below = [&draw](std::size_t count) {
    draw = draw * 1664525U + 1013904223U;
    return (draw >> 8U) % count;
  };
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string damaged = whole;
    const std::size_t place = below(damaged.size());
    if (below(2) == 0) {
      damaged[place] = static_cast<char>(below(256));
    } else {
      damaged.erase(place, 1 + below(40));
    }
    try {
      (void)parse_tokenizer_json(damaged, "tokenizer.json").encode("the <a> word");
    } catch (const ConfigError& error) {
      ++refused;
      const std::string what = error.what();
      EXPECT_EQ(what.find("json.exception"), std::string::npos) << what;
      EXPECT_TRUE(what.find("tokenizer") != std::string::npos || what.find("has no token") != std::string::npos)
          << what;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Vocabulary, IsThatOfBytesWhereEachByteHasItsOwnNumber) {
  EXPECT_FALSE(of(entry("plain")["tokenizer"]).is_bytes());
  json tokens = json::object();
  for (int byte = 0, next = 256; byte < 256; ++byte) {
    const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int point = prints ? byte : next++;
    tokens[point < 128 ? std::string(1, static_cast<char>(point))
                       : std::string{static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))}] =
        byte;
  }
  const Folder folder;
  folder.write("vocab.json", tokens);
  folder.write("merges.txt", std::string("#version: 0.2\n"));
  EXPECT_TRUE(folder.read().is_bytes());
}

TEST(TokenSidecar, AFileOfAnotherProgramIsNone) {
  const Folder folder;
  const std::string tokens = folder.at("a.bin");
  for (const std::string text : {R"({"text": "one"})"
                                 "\n"
                                 R"({"text": "two"})",
                                 R"([1, 2])", R"({"text": "one"})"}) {
    folder.write("a.json", text);
    EXPECT_EQ(vocabulary_hash_of(tokens), "");
    EXPECT_TRUE(std::isnan(bytes_per_token_of(tokens, 7)));
    check_token_count_of(tokens, 7);
  }
  folder.write("a.json", R"({"tokens": 8, "vocabulary_sha256": ")" + std::string(std::size_t{1} << 20, 'a') + "\"}");
  EXPECT_EQ(vocabulary_hash_of(tokens), "") << "too large for one of scripts/tokenize";
  folder.write("a.json", std::string(R"({"tokens": 8)"));
  EXPECT_THAT(config_error_of([&] { (void)vocabulary_hash_of(tokens); }), HasSubstr("a.json")) << "cut";
}

TEST(TokenSidecar, ThatCountsOtherTokensThanTheFileIsRefused) {
  const Folder folder;
  const std::string tokens = folder.at("a.bin");
  EXPECT_TRUE(std::isnan(bytes_per_token_of(tokens, 100)));
  folder.write("a.json", json{{"bytes", 400}, {"tokens", 100}, {"vocabulary_sha256", "1"}});
  EXPECT_EQ(bytes_per_token_of(tokens, 100), 4);
  check_token_count_of(tokens, 100);
  for (const auto& check : {std::function<void()>([&] { (void)bytes_per_token_of(tokens, 99); }),
                            std::function<void()>([&] { check_token_count_of(tokens, 99); })}) {
    EXPECT_THAT(config_error_of(check), AllOf(HasSubstr("a.json: /tokens: got 100, but "), HasSubstr("a.bin has 99")));
  }
}

}  // namespace
}  // namespace droptest::experiments::vocabulary_test
