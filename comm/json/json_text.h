// SPDX-License-Identifier: Apache-2.0
// JSON text <-> values, stricter than the library's default: ambiguous input is an error.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace droptest::comm {

/// Deepest nesting of objects and lists that is read.
inline constexpr int kMaxJsonDepth = 64;

/// Parses one JSON value. `where` names the text in messages, e.g. the file. Integers up to 2^64 - 1 are exact.
/// Throws: ConfigError with line and column for text that is not JSON or has a byte 0, for a key that appears twice in
/// an object, a number beyond a double's range, text that is not UTF-8, or nesting beyond kMaxJsonDepth.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// Reads and parses a file. Throws: the errors of parse_json(), and ConfigError with the system's reason for a file
/// that cannot be read.
nlohmann::json load_json(const std::string& path);

/// One line that depends only on the value: sorted keys, no spaces, UTF-8 as it is, shortest numbers that read back
/// exactly. Equal to Python's json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False), so that
/// anyone can check a run id.
std::string canonical_json(const nlohmann::json& value);

/// JSON has no number for infinities and NaN: they become null.
nlohmann::json finite_or_null(double value);

/// The text with U+FFFD in the place of bytes that are not UTF-8, which JSON texts cannot have. Names of files may have
/// any bytes.
std::string with_valid_utf8(const std::string& text);

/// The value as messages quote it: one line, at most `longest` bytes.
std::string quote_json(const nlohmann::json& value, std::size_t longest = 120);

}  // namespace droptest::comm
