// SPDX-License-Identifier: Apache-2.0
// Named values from a spec, each with its place in the spec. Components read their own parameters from it and so need
// no JSON; `experiments` fills it from a spec.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace droptest::sim {

/// A tree of values as a spec writes them: numbers, texts, truth values, lists and named members.
class Parameters {
 public:
  using List = std::vector<Parameters>;
  using Members = std::map<std::string, Parameters, std::less<>>;
  using Value = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, List, Members>;

  /// `where` names the place in messages: a file and a JSON pointer, e.g. "spec.json: /network/loss".
  Parameters(Value value, std::string where);

  const std::string& where() const { return where_; }
  const Value& value() const { return value_; }

  /// Throws: ConfigError unless this is an object; `what` names it, e.g. "a loss process".
  void require_members(std::string_view what) const;

  bool has(std::string_view name) const;
  /// Throws: ConfigError if the member is missing, naming `where` and the member.
  const Parameters& member(std::string_view name) const;

  /// A probability: a number in [0, 1], or a text with % ("5%"). Throws: ConfigError with the value got.
  double probability(std::string_view name) const;
  /// A finite number in [low, high]. Throws: ConfigError with the value got, as integer() and text() do.
  double number(std::string_view name, double low, double high) const;
  /// An integer in [low, high].
  std::int64_t integer(std::string_view name, std::int64_t low, std::int64_t high) const;
  /// A text.
  std::string text(std::string_view name) const;

  /// Throws: ConfigError for a member that is not in `allowed`, listing those.
  void allow_only(const std::set<std::string, std::less<>>& allowed) const;

  /// Throws ConfigError "<where>/<name>: got <value>, want <want>".
  [[noreturn]] void fail(std::string_view name, std::string_view want) const;

 private:
  Value value_;
  std::string where_;
};

}  // namespace droptest::sim
