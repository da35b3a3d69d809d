// SPDX-License-Identifier: Apache-2.0
// Files of labelled texts: TSV, or JSON lines (docs/classification.md). Parsing works on text in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace droptest::experiments {

/// An example as its file has it: a text, or the tokens of one.
struct ExampleRow {
  std::uint64_t line = 0;  ///< line in the file, from 1
  std::string label;
  std::string text;
  std::vector<std::int32_t> tokens;  ///< tokens of the text; empty: the text is not in tokens yet
};

/// The columns of a TSV file, or members of a JSON line, from which an example is read.
struct ExampleLayout {
  std::string_view name;
  std::string_view label;
  std::string_view text_a;
  std::string_view text_b;  ///< empty: texts are single
  std::string_view summary;
};

/// The known layouts: "plain", and the tasks of GLUE that classify by one label: cola, mnli, mrpc, qnli, qqp, rte,
/// sst2, wnli.
const std::vector<ExampleLayout>& example_layouts();

/// The examples of a file with a name in .tsv or .txt (TSV), or in .jsonl, .json or .ndjson (JSON lines). A pair of
/// texts becomes one text with `separator` in between. Lines of the layout mnli with the label "-", on which annotators
/// did not agree, are left out. Throws: ConfigError that names file, line and reason.
std::vector<ExampleRow> parse_examples(std::string_view file, const std::string& path, std::string_view layout,
                                       const std::string& separator);
/// Reads and parses a file. Throws: the errors of parse_examples(), and ConfigError if the file cannot be read.
std::vector<ExampleRow> read_examples(const std::string& path, std::string_view layout, const std::string& separator);

/// The labels that occur, sorted: as numbers if all are whole numbers, else by their bytes.
std::vector<std::string> labels_of(const std::vector<ExampleRow>& rows);

}  // namespace droptest::experiments
