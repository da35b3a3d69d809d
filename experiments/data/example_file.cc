// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/example_file.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/data/utf8.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr std::string_view kPlain = "plain";
constexpr std::string_view kNoAgreement = "-";  ///< MNLI's label of a pair without a majority
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

/// CoLA's files have no header: source, label, the author's mark, sentence.
const std::vector<std::string> kColaColumns = {"source", "label", "mark", "sentence"};

const ExampleLayout& layout_of(std::string_view name) {
  for (const ExampleLayout& layout : example_layouts()) {
    if (layout.name == name) return layout;
  }
  throw CheckError("no layout is called " + std::string(name));
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// A line of a file, for messages.
class Line {
 public:
  Line(const std::string& path, std::uint64_t number) : path_(path), number_(number) {}
  std::uint64_t number() const { return number_; }
  [[noreturn]] void fail(const std::string& what) const {
    throw ConfigError(path_ + ": line " + std::to_string(number_) + ": " + what);
  }

 private:
  const std::string& path_;
  std::uint64_t number_;
};

/// Calls body(line, text) for each line, without its end.
template <class Body>
void for_each_line(std::string_view file, const std::string& path, const Body& body) {
  if (file.starts_with(kByteOrderMark)) file.remove_prefix(kByteOrderMark.size());
  std::uint64_t number = 0;
  while (!file.empty()) {
    const std::size_t end = std::min(file.find('\n'), file.size());
    const std::string_view text = file.substr(0, end);
    file.remove_prefix(std::min(end + 1, file.size()));
    const Line line(path, ++number);
    if (text.ends_with('\r')) {
      line.fail(R"(ends in CR LF, want LF alone: sed -i 's/\r$//' on the file converts it)");
    }
    const std::optional<std::size_t> invalid = first_invalid_utf8(std::as_bytes(std::span(text)));
    if (invalid)
      line.fail("not UTF-8 at byte " + std::to_string(*invalid) + " of the line; iconv -t UTF-8 converts it");
    body(line, text);
  }
}

/// The cells of a line without a treatment of quotes.
std::vector<std::string> plain_cells(std::string_view text) {
  std::vector<std::string> cells;
  for (;;) {
    const std::size_t end = std::min(text.find('\t'), text.size());
    cells.emplace_back(text.substr(0, end));
    if (end == text.size()) return cells;
    text.remove_prefix(end + 1);
  }
}

/// The cells of a line if a cell may be in quotes, within which a tab is a character and two quotes are one.
std::vector<std::string> quoted_cells(std::string_view text, const Line& line) {
  std::vector<std::string> cells;
  for (;;) {
    std::string& cell = cells.emplace_back();
    if (!text.starts_with('"')) {
      const std::size_t end = std::min(text.find('\t'), text.size());
      cell = text.substr(0, end);
      text.remove_prefix(end);
    } else {
      text.remove_prefix(1);
      const auto fail = [&](const std::string& what) {
        line.fail("cell " + std::to_string(cells.size()) + " begins with a quote " + what);
      };
      for (;;) {
        const std::size_t end = text.find('"');
        if (end == std::string_view::npos) fail("that no other one closes on the line; two quotes stand for one");
        cell += text.substr(0, end);
        text.remove_prefix(end + 1);
        if (!text.starts_with('"')) break;
        cell += '"';
        text.remove_prefix(1);
      }
      if (!text.empty() && !text.starts_with('\t')) fail("and goes on behind the closing one, want a tab there");
    }
    if (text.empty()) return cells;
    text.remove_prefix(1);
  }
}

/// The texts of an example before they are one.
struct Parts {
  std::string label, text_a, text_b;
};

/// The columns of a TSV file with the parts of an example.
struct Columns {
  std::size_t label = 0;
  std::size_t text_a = 0;
  std::optional<std::size_t> text_b;
};

/// The columns by a header, or by the known columns of a file without one.
Columns columns_of(const std::vector<std::string>& header, const ExampleLayout& layout, const Line& line) {
  const auto place = [&](std::string_view name) -> std::optional<std::size_t> {
    const auto found = std::find(header.begin(), header.end(), name);
    if (found == header.end()) return std::nullopt;
    if (std::find(found + 1, header.end(), name) != header.end()) {
      line.fail("has the column " + std::string(name) + " twice");
    }
    return static_cast<std::size_t>(found - header.begin());
  };
  Columns columns;
  const bool is_plain = layout.name == kPlain;
  const std::optional<std::size_t> label = place(layout.label);
  const std::optional<std::size_t> single = is_plain ? place("text") : std::nullopt;
  const std::optional<std::size_t> text_a = place(layout.text_a);
  const std::optional<std::size_t> text_b = layout.text_b.empty() ? std::nullopt : place(layout.text_b);
  const bool pair = text_a && (text_b || layout.text_b.empty());
  if (!label || (is_plain ? (single.has_value() == pair || (single && (text_a || text_b))) : !pair)) {
    const std::string wanted = is_plain ? "label and text, or label, text_a and text_b"
                                        : std::string(layout.label) + ", " + std::string(layout.text_a) +
                                              (layout.text_b.empty() ? "" : ", " + std::string(layout.text_b)) +
                                              " of the layout " + std::string(layout.name);
    line.fail("has the columns " + listed(header) + ", want a header with " + wanted);
  }
  columns.label = *label;
  columns.text_a = single ? *single : *text_a;
  columns.text_b = text_b;
  return columns;
}

/// Labels stand in specs, and texts of specs have no U+0000.
void require_label(const std::string& label, const Line& line) {
  if (label.empty()) line.fail("has no label");
  if (label.find('\0') != std::string::npos)
    line.fail("label: got " + comm::quote_json(label) + ", want a text without U+0000");
}

void add_example(const Line& line, Parts parts, const ExampleLayout& layout, const std::string& separator, bool is_pair,
                 std::vector<ExampleRow>& rows) {
  if (layout.name == "mnli" && parts.label == kNoAgreement) return;
  require_label(parts.label, line);
  if (parts.text_a.empty() && parts.text_b.empty()) line.fail("has no text");
  ExampleRow& row = rows.emplace_back();
  row.line = line.number();
  row.label = std::move(parts.label);
  row.text = is_pair ? parts.text_a + separator + parts.text_b : std::move(parts.text_a);
}

std::vector<ExampleRow> parse_tsv(std::string_view file, const std::string& path, const ExampleLayout& layout,
                                  const std::string& separator) {
  std::vector<ExampleRow> rows;
  std::optional<Columns> columns;
  std::size_t width = 0;
  if (layout.name == "cola") {
    columns = columns_of(kColaColumns, layout, Line(path, 1));
    width = kColaColumns.size();
  }
  for_each_line(file, path, [&](const Line& line, std::string_view text) {
    const std::vector<std::string> cells = layout.name == kPlain ? quoted_cells(text, line) : plain_cells(text);
    if (!columns) {
      columns = columns_of(cells, layout, line);
      width = cells.size();
      return;
    }
    if (text.empty()) line.fail("is empty");
    if (cells.size() != width) {
      line.fail("has " + std::to_string(cells.size()) + " cells, want " + std::to_string(width) + ", as " +
                (layout.name == "cola" ? "files of cola have" : "the header has") +
                (layout.name == kPlain
                     ? ""
                     : "; awk -F'\\t' 'NF == " + std::to_string(width) + "' on the file leaves out such lines"));
    }
    add_example(line, {cells[columns->label], cells[columns->text_a], columns->text_b ? cells[*columns->text_b] : ""},
                layout, separator, columns->text_b.has_value(), rows);
  });
  return rows;
}

/// A label may be a text or a whole number.
std::string label_text(const json& label, const Line& line) {
  if (label.is_string()) return label.get<std::string>();
  if (label.is_number_integer()) return label.dump();
  line.fail("label: got " + comm::quote_json(label) + ", want a text or a whole number");
}

std::vector<std::int32_t> tokens_of(const json& tokens, const Line& line) {
  const bool numbers =
      tokens.is_array() && !tokens.empty() && std::all_of(tokens.begin(), tokens.end(), [](const json& t) {
        return t.is_number_unsigned() && t.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max();
      });
  if (!numbers)
    line.fail("tokens: got " + comm::quote_json(tokens) + ", want a list of token numbers that is not empty");
  return tokens.get<std::vector<std::int32_t>>();
}

std::vector<ExampleRow> parse_json_lines(std::string_view file, const std::string& path, const ExampleLayout& layout,
                                         const std::string& separator) {
  std::vector<ExampleRow> rows;
  const std::string label_name(layout.label);
  for_each_line(file, path, [&](const Line& line, std::string_view text) {
    if (text.empty()) line.fail("is empty");
    const json object = comm::parse_json(text, path + ": line " + std::to_string(line.number()));
    if (!object.is_object()) line.fail("got " + comm::quote_json(object) + ", want an object");
    if (!object.contains(label_name)) line.fail("has no member " + label_name);
    const auto text_of = [&](const std::string& name) {
      if (!object.contains(name)) line.fail("has no member " + name);
      if (!object[name].is_string()) line.fail(name + ": got " + comm::quote_json(object[name]) + ", want a text");
      return object[name].get<std::string>();
    };
    Parts parts{label_text(object[label_name], line), "", ""};
    if (layout.name != kPlain) {
      parts.text_a = text_of(std::string(layout.text_a));
      if (!layout.text_b.empty()) parts.text_b = text_of(std::string(layout.text_b));
      return add_example(line, std::move(parts), layout, separator, !layout.text_b.empty(), rows);
    }
    const bool pair = object.contains("text_a") || object.contains("text_b");
    if (object.contains("tokens") + object.contains("text") + static_cast<int>(pair) != 1) {
      line.fail("want one of text, tokens, and text_a with text_b");
    }
    if (object.contains("tokens")) {
      require_label(parts.label, line);
      rows.push_back({line.number(), std::move(parts.label), "", tokens_of(object["tokens"], line)});
      return;
    }
    parts.text_a = text_of(pair ? "text_a" : "text");
    if (pair) parts.text_b = text_of("text_b");
    add_example(line, std::move(parts), layout, separator, pair, rows);
  });
  return rows;
}

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

const std::vector<ExampleLayout>& example_layouts() {
  static const std::vector<ExampleLayout> layouts = {
      {kPlain, "label", "text_a", "text_b", "a header with label and text, or label, text_a and text_b"},
      {"cola", "label", "sentence", "", "GLUE's CoLA, without a header"},
      {"mnli", "gold_label", "sentence1", "sentence2", "GLUE's MNLI, and SNLI"},
      {"mrpc", "Quality", "#1 String", "#2 String", "GLUE's MRPC"},
      {"qnli", "label", "question", "sentence", "GLUE's QNLI"},
      {"qqp", "is_duplicate", "question1", "question2", "GLUE's QQP"},
      {"rte", "label", "sentence1", "sentence2", "GLUE's RTE"},
      {"sst2", "label", "sentence", "", "GLUE's SST-2"},
      {"wnli", "label", "sentence1", "sentence2", "GLUE's WNLI"},
  };
  return layouts;
}

std::vector<ExampleRow> parse_examples(std::string_view file, const std::string& path, std::string_view layout,
                                       const std::string& separator) {
  const auto ends = [&path](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&path](const char* name) { return path.ends_with(name); });
  };
  const bool is_json = ends({".jsonl", ".json", ".ndjson"});
  if (!is_json && !ends({".tsv", ".txt"})) {
    throw ConfigError(path + ": want a name that ends in .tsv or .txt, or in .jsonl, .json or .ndjson");
  }
  const ExampleLayout& of = layout_of(layout);
  std::vector<ExampleRow> rows =
      is_json ? parse_json_lines(file, path, of, separator) : parse_tsv(file, path, of, separator);
  if (rows.empty()) throw ConfigError(path + ": has no example");
  return rows;
}

std::vector<ExampleRow> read_examples(const std::string& path, std::string_view layout, const std::string& separator) {
  return parse_examples(comm::read_file(path), path, layout, separator);
}

std::vector<std::string> labels_of(const std::vector<ExampleRow>& rows) {
  std::set<std::string> names;
  for (const ExampleRow& row : rows) names.insert(row.label);
  std::vector<std::string> sorted(names.begin(), names.end());
  if (!std::all_of(sorted.begin(), sorted.end(),
                   [](const std::string& name) { return whole_number(name).has_value(); })) {
    return sorted;
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const std::string& a, const std::string& b) { return *whole_number(a) < *whole_number(b); });
  return sorted;
}

}  // namespace droptest::experiments
