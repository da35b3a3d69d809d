// SPDX-License-Identifier: Apache-2.0
// Any bytes as a tokenizer.json, or as vocab.json, merges.txt and added_tokens.json with bytes 255 between them. Only
// ConfigError may come out, and the tokens of a text spell it.
#include <cstddef>
#include <cstdint>
#include <string>

#include "experiments/data/vocabulary.h"
#include "sim/error.h"

namespace {

void use(const droptest::experiments::Vocabulary& vocabulary) {
  DROPTEST_CHECK(vocabulary.hash().size() == 64, "a hash");
  const std::string text = "the word's a<b> \n";
  const std::vector<std::int32_t> tokens = vocabulary.encode(text);
  for (const std::int32_t token : tokens) DROPTEST_CHECK(token >= 0 && token < vocabulary.size(), "a token");
  (void)vocabulary.decode(tokens);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace droptest::experiments;  // NOLINT: the whole program is about one namespace
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    use(parse_tokenizer_json(text, "fuzz/tokenizer.json"));
  } catch (const droptest::ConfigError&) {  // NOLINT(bugprone-empty-catch): refused
  }
  try {
    const std::size_t first = text.find('\xff');
    const std::size_t second = first == std::string::npos ? first : text.find('\xff', first + 1);
    Gpt2Texts texts{text.substr(0, first), "", {}};
    if (first != std::string::npos) texts.merges = text.substr(first + 1, second - first - 1);
    if (second != std::string::npos) texts.added = text.substr(second + 1);
    use(parse_gpt2_files(texts, "fuzz"));
  } catch (const droptest::ConfigError&) {
    return 0;
  }
  return 0;
}
