// SPDX-License-Identifier: Apache-2.0
// Options with numbers as values: decimal digits within a range that errors and --help name. CLI11's own conversion
// follows strtoull: it takes 010 for 8, an empty text for 0 and -1 for 2^64 - 1.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace droptest::cli {

/// Both ends belong to the range.
struct IntegerRange {
  std::uint64_t low = 0;
  std::uint64_t high = std::numeric_limits<std::uint64_t>::max();
};

/// The integer with the decimal digits of `text`, without a sign, blanks or a prefix; 010 is ten. Nothing for another
/// text and outside of `range`.
std::optional<std::uint64_t> decimal_integer(std::string_view text, IntegerRange range = {});

/// An option of one integer, which `set` receives. `shown` gives the default that --help shows, if it shows one.
/// Parsing throws: CLI::ValidationError that names the option, the text and the range.
CLI::Option* add_integer_option(CLI::App& command, const std::string& name, const std::string& description,
                                IntegerRange range, std::function<void(std::uint64_t)> set,
                                std::function<std::string()> shown = {});

/// An integer option of a variable, which holds the default and outlives `command`. It has room for all of `range`.
template <std::integral Integer>
CLI::Option* add_integer(CLI::App& command, const std::string& name, Integer& value, const std::string& description,
                         IntegerRange range) {
  return add_integer_option(
      command, name, description, range, [&value](std::uint64_t got) { value = static_cast<Integer>(got); },
      [&value] { return std::to_string(value); });
}

/// An integer option of a variable that tells whether the option was given.
CLI::Option* add_integer(CLI::App& command, const std::string& name, std::optional<std::uint64_t>& value,
                         const std::string& description, IntegerRange range);

/// The type that --help shows of the options below.
inline constexpr const char* kIntegersType = "INT,...";

/// An option of integers with commas between them: at least one, none empty. `values` outlives `command`.
CLI::Option* add_integers(CLI::App& command, const std::string& name, std::vector<std::int32_t>& values,
                          const std::string& description, IntegerRange range);

/// An option of a finite decimal number in [low, high], with or without an exponent. `value` outlives `command`.
CLI::Option* add_number(CLI::App& command, const std::string& name, double& value, const std::string& description,
                        double low, double high);

/// An option of a size: a number of bytes, or one with a unit: B; KiB, MiB, GiB, TiB of 1024, 1024^2, ..., also without
/// "B" or "iB"; kB, MB, GB, TB of 1000, 1000^2, ..., in any case of letters. Unit of `range`: bytes.
CLI::Option* add_size(CLI::App& command, const std::string& name, std::uint64_t& bytes, const std::string& description,
                      IntegerRange range);

}  // namespace droptest::cli
