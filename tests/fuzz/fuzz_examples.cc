// SPDX-License-Identifier: Apache-2.0
// Any bytes as a file of labelled texts, in each layout. Only ConfigError may come out, and each row has a label and a
// text or tokens.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "experiments/data/example_file.h"
#include "sim/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace droptest::experiments;  // NOLINT: the whole program is about one namespace
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"a.tsv", "a.jsonl"}) {
    for (const ExampleLayout& layout : example_layouts()) {
      try {
        for (const ExampleRow& row : parse_examples(text, name, layout.name, "\n")) {
          DROPTEST_CHECK(!row.label.empty() && row.tokens.empty() != row.text.empty(), "a label, and a text or tokens");
        }
      } catch (const droptest::ConfigError&) {
        continue;
      }
    }
  }
  return 0;
}
