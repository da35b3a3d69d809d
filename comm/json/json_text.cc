// SPDX-License-Identifier: Apache-2.0
#include "comm/json/json_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/json/read_file.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

using nlohmann::json;

/// The position of a byte, as editors count: lines and columns from 1.
std::string line_and_column(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

/// Builds a value as the library's own reader does, but refuses input that the library accepts silently.
class StrictReader final : public nlohmann::json_sax<json> {
 public:
  StrictReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  // A number beyond a double's range comes to parse_error instead.
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(json::object()); }
  bool key(string_t& name) override {
    Level& level = levels_.back();
    const auto [member, is_new] = level.value->get_ref<json::object_t&>().try_emplace(std::move(name));
    level.key = &member->first;
    level.member = &member->second;
    if (!is_new) {
      throw ConfigError(where_ + ": " + pointer() + ": the key " + quote_json(*level.key) +
                        " appears twice in its object");
    }
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& error) override {
    // 406 is a number with an exponent beyond a double; every other error is bad syntax.
    if (error.id == 406) {
      throw ConfigError(where_ + ": " + line_and_column(text_, position > 0 ? position - 1 : 0) + ": got " + token +
                        ", want a number in a double's range");
    }
    const std::string what = error.what();
    // The library's text is "[...] parse error at line L, column C: REASON"; we count lines and columns ourselves.
    const std::size_t at = what.find(", column ");
    const std::size_t colon = at == std::string::npos ? std::string::npos : what.find(": ", at);
    throw ConfigError(where_ + ": " + line_and_column(text_, position > 0 ? position - 1 : 0) +
                      ": not JSON: " + (colon == std::string::npos ? what : what.substr(colon + 2)));
  }

 private:
  /// An object or list that is being read. It is already in its final place, so that it is never moved.
  struct Level {
    json* value;
    const std::string* key = nullptr;  ///< key of the member being read, if it is an object
    json* member = nullptr;            ///< member being read, if it is an object
  };

  /// The place of the next value.
  json& place() {
    if (levels_.empty()) return root_;
    if (levels_.back().value->is_object()) return *levels_.back().member;
    return levels_.back().value->emplace_back();
  }

  bool put(json value) {
    place() = std::move(value);
    return true;
  }

  bool open(json value) {
    if (levels_.size() >= static_cast<std::size_t>(kMaxJsonDepth)) {
      throw ConfigError(where_ + ": nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    json& opened = place();
    opened = std::move(value);
    levels_.push_back({&opened});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  /// The pointer of the member being read.
  std::string pointer() const {
    json::json_pointer path;
    for (const Level& level : levels_) {
      if (level.value->is_object()) {
        path.push_back(*level.key);
      } else {
        path.push_back(std::to_string(level.value->size() - 1));
      }
    }
    return path.to_string();
  }

  std::string_view text_;
  const std::string& where_;
  json root_;
  std::vector<Level> levels_;
};

/// The layout of Python's repr(float): fixed for 1e-4 <= |x| < 1e16, else with an exponent of two digits or more.
std::string canonical_number(double value) {
  std::array<char, 64> buffer{};
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto format = fixed ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
  std::string text(buffer.data(), end);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

/// Appends a string. Most strings have no escape and are the library's text.
void append_string(const std::string& text, std::string& out) {
  const bool plain =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  out += plain ? '"' + text + '"' : json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

void append_canonical(const json& value, std::string& out) {
  if (value.is_object()) {
    char separator = '{';
    for (const auto& [name, member] : value.items()) {  // the library's objects are sorted by key, bytewise
      out += separator;
      append_string(name, out);
      out += ':';
      append_canonical(member, out);
      separator = ',';
    }
    out += value.empty() ? "{}" : "}";
  } else if (value.is_array()) {
    char separator = '[';
    for (const json& item : value) {
      out += separator;
      append_canonical(item, out);
      separator = ',';
    }
    out += value.empty() ? "[]" : "]";
  } else if (value.is_string()) {
    append_string(value.get_ref<const std::string&>(), out);
  } else if (value.is_number_unsigned()) {
    out += std::to_string(value.get<std::uint64_t>());
  } else if (value.is_number_float() && std::isfinite(value.get<double>())) {
    out += canonical_number(value.get<double>());
  } else {
    out += value.dump(-1, ' ', false, json::error_handler_t::replace);
  }
}

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  StrictReader reader(text, where);
  const bool read = json::sax_parse(text.begin(), text.end(), &reader);
  DROPTEST_CHECK(read, where);
  // The library takes a byte 0 for the end of the text.
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
    throw ConfigError(where + ": " + line_and_column(text, at) + ": not JSON: a byte 0, want none in a text");
  }
  return reader.take();
}

json load_json(const std::string& path) { return parse_json(read_file(path), path); }

std::string canonical_json(const json& value) {
  std::string out;
  append_canonical(value, out);
  return out;
}

nlohmann::json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

std::string with_valid_utf8(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

std::string quote_json(const json& value, std::size_t longest) {
  std::string text = canonical_json(value);
  if (text.size() <= longest) return text;
  std::size_t end = longest - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;  // do not cut a UTF-8 sequence
  return text.substr(0, end) + "...";
}

}  // namespace droptest::comm
