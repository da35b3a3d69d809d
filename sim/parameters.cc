// SPDX-License-Identifier: Apache-2.0
#include "sim/parameters.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "sim/error.h"

namespace droptest::sim {
namespace {

template <typename Number>
std::string shortest(Number number) {
  char text[40];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, number);
  return {text, end.ptr};
}

std::string value_text(const Parameters::Value& value) {
  struct Printer {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool truth) const { return truth ? "true" : "false"; }
    std::string operator()(std::int64_t number) const { return shortest(number); }
    std::string operator()(std::uint64_t number) const { return shortest(number); }
    std::string operator()(double number) const { return shortest(number); }
    std::string operator()(const std::string& text) const { return '"' + text + '"'; }
    std::string operator()(const Parameters::List& list) const {
      return "a list of " + std::to_string(list.size()) + (list.size() == 1 ? " value" : " values");
    }
    std::string operator()(const Parameters::Members& members) const {
      return "an object of " + std::to_string(members.size()) + (members.size() == 1 ? " member" : " members");
    }
  };
  return std::visit(Printer{}, value);
}

/// One more step of a JSON pointer. Source: RFC 6901, section 3.
std::string pointer_step(std::string_view name) {
  std::string step = "/";
  for (const char c : name) {
    if (c == '~') {
      step += "~0";
    } else if (c == '/') {
      step += "~1";
    } else {
      step += c;
    }
  }
  return step;
}

std::string joined(const std::set<std::string, std::less<>>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::optional<double> as_double(const Parameters::Value& value) {
  if (const auto* i = std::get_if<std::int64_t>(&value)) return static_cast<double>(*i);
  if (const auto* u = std::get_if<std::uint64_t>(&value)) return static_cast<double>(*u);
  if (const auto* d = std::get_if<double>(&value)) return *d;
  return std::nullopt;
}

/// "5%" as 0.05, rounded once: the decimal exponent is lowered by two before the text becomes a number, so that "0.7%"
/// and 0.007 are the same double.
std::optional<double> percent(std::string_view text) {
  if (text.empty() || text.back() != '%') return std::nullopt;
  text.remove_suffix(1);
  // Digits first: from_chars would also take "inf" and "nan".
  if (text.empty() || (text[0] != '.' && text[0] != '-' && (text[0] < '0' || text[0] > '9'))) return std::nullopt;
  const std::size_t e = text.find_first_of("eE");
  int exponent = 0;
  if (e != std::string_view::npos) {
    const std::string_view digits = text.substr(e + 1);
    const char* end = digits.data() + digits.size();
    const std::from_chars_result read = std::from_chars(digits.data(), end, exponent);
    if (read.ec != std::errc() || read.ptr != end || exponent < -400 || exponent > 400) return std::nullopt;
  }
  const std::string shifted = std::string(text.substr(0, e)) + "e" + std::to_string(exponent - 2);
  double value = 0;
  const char* end = shifted.data() + shifted.size();
  const std::from_chars_result read = std::from_chars(shifted.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace

Parameters::Parameters(Value value, std::string where) : value_(std::move(value)), where_(std::move(where)) {}

void Parameters::require_members(std::string_view what) const {
  if (std::holds_alternative<Members>(value_)) return;
  throw ConfigError(where_ + ": got " + value_text(value_) + ", want an object: " + std::string(what));
}

bool Parameters::has(std::string_view name) const {
  const auto* members = std::get_if<Members>(&value_);
  return members != nullptr && members->find(name) != members->end();
}

const Parameters& Parameters::member(std::string_view name) const {
  if (const auto* members = std::get_if<Members>(&value_)) {
    const auto found = members->find(name);
    if (found != members->end()) return found->second;
  }
  throw ConfigError(where_ + pointer_step(name) + ": is missing");
}

double Parameters::probability(std::string_view name) const {
  const Value& value = member(name).value();
  std::optional<double> p = as_double(value);
  if (const auto* text = std::get_if<std::string>(&value)) p = percent(*text);
  // A NaN fails the comparison too.
  if (!p || !(*p >= 0 && *p <= 1)) fail(name, "a number in [0, 1], or a text in percent like \"5%\"");
  return *p + 0.0;  // -0 becomes 0
}

double Parameters::number(std::string_view name, double low, double high) const {
  const std::optional<double> x = as_double(member(name).value());
  if (!x || !std::isfinite(*x) || !(*x >= low && *x <= high)) {
    fail(name, "a number in [" + shortest(low) + ", " + shortest(high) + "]");
  }
  return *x;
}

std::int64_t Parameters::integer(std::string_view name, std::int64_t low, std::int64_t high) const {
  const Value& value = member(name).value();
  std::optional<std::int64_t> i;
  if (const auto* s = std::get_if<std::int64_t>(&value)) i = *s;
  if (const auto* u = std::get_if<std::uint64_t>(&value)) {
    if (std::in_range<std::int64_t>(*u)) i = static_cast<std::int64_t>(*u);
  }
  if (const auto* d = std::get_if<double>(&value)) {
    // 1e3 and 5.0 are integers in JSON. Up to 2^53 a double is the number that was written.
    if (*d == std::floor(*d) && std::fabs(*d) <= 9007199254740992.0) i = static_cast<std::int64_t>(*d);
  }
  if (!i || *i < low || *i > high) fail(name, "an integer in [" + shortest(low) + ", " + shortest(high) + "]");
  return *i;
}

std::string Parameters::text(std::string_view name) const {
  const auto* text = std::get_if<std::string>(&member(name).value());
  if (text == nullptr) fail(name, "a text");
  return *text;
}

void Parameters::allow_only(const std::set<std::string, std::less<>>& allowed) const {
  const auto* members = std::get_if<Members>(&value_);
  if (members == nullptr) return;
  for (const auto& entry : *members) {
    if (allowed.find(entry.first) == allowed.end()) {
      throw ConfigError(where_ + pointer_step(entry.first) + ": unknown name, want one of " + joined(allowed));
    }
  }
}

void Parameters::fail(std::string_view name, std::string_view want) const {
  const std::string got = has(name) ? value_text(member(name).value()) : "nothing";
  throw ConfigError(where_ + pointer_step(name) + ": got " + got + ", want " + std::string(want));
}

}  // namespace droptest::sim
