// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/number_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

namespace droptest::cli {
namespace {

constexpr std::uint64_t kNoUpperEnd = std::numeric_limits<std::uint64_t>::max();

[[noreturn]] void refuse(const std::string& name, std::string_view got, const std::string& want) {
  throw CLI::ValidationError(name, "got \"" + std::string(got) + "\", want " + want);
}

std::string text_of(IntegerRange range) {
  if (range.high == kNoUpperEnd) return "an integer from " + std::to_string(range.low) + " to 2^64 - 1";
  return "an integer from " + std::to_string(range.low) + " to " + std::to_string(range.high);
}

/// The type of an option in --help, worded as by CLI::Range.
std::string type_of(IntegerRange range) {
  if (range.low == 0 && range.high == kNoUpperEnd) return "INT";
  return "INT in [" + std::to_string(range.low) + " - " +
         (range.high == kNoUpperEnd ? "2^64)" : std::to_string(range.high) + "]");
}

std::string short_number(double number) {
  char text[40];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, number);
  return {text, end.ptr};
}

/// An option that takes one value: `read` gets the name and the text, and throws the error if the text is wrong.
CLI::Option* add_text(CLI::App& command, const std::string& name, const std::string& description,
                      const std::string& type, std::function<void(const std::string&, const std::string&)> read,
                      std::function<std::string()> shown) {
  // The option's first name, --jobs of "--jobs,-j".
  const std::string own = name.substr(0, name.find(','));
  return command
      .add_option(
          name,
          [own, read = std::move(read)](const CLI::results_t& texts) {
            read(own, texts.at(0));
            return true;
          },
          description, false, std::move(shown))
      ->type_name(type);
}

/// A number of bytes, with or without a fraction, and a unit behind at most one blank.
std::optional<double> bytes_in(const std::string& text) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number, std::chars_format::general);
  if (error != std::errc() || text[0] == '-') return std::nullopt;
  const std::string unit = CLI::detail::to_lower(std::string(end != last && *end == ' ' ? end + 1 : end, last));
  if (unit.empty()) return end == last ? std::optional(number) : std::nullopt;
  if (unit == "b") return number;
  constexpr std::string_view kLetters = "kmgt";
  const std::size_t power = kLetters.find(unit[0]);
  if (power == std::string_view::npos) return std::nullopt;
  if (unit.size() == 1 || unit.substr(1) == "i" || unit.substr(1) == "ib") return number * std::pow(1024, power + 1);
  if (unit.substr(1) == "b") return number * std::pow(1000, power + 1);
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> decimal_integer(std::string_view text, IntegerRange range) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (number < range.low || number > range.high) return std::nullopt;
  return number;
}

CLI::Option* add_integer_option(CLI::App& command, const std::string& name, const std::string& description,
                                IntegerRange range, std::function<void(std::uint64_t)> set,
                                std::function<std::string()> shown) {
  return add_text(
      command, name, description, type_of(range),
      [range, set = std::move(set)](const std::string& own, const std::string& text) {
        const std::optional<std::uint64_t> number = decimal_integer(text, range);
        if (!number) refuse(own, text, text_of(range));
        set(*number);
      },
      std::move(shown));
}

CLI::Option* add_integer(CLI::App& command, const std::string& name, std::optional<std::uint64_t>& value,
                         const std::string& description, IntegerRange range) {
  return add_integer_option(command, name, description, range, [&value](std::uint64_t got) { value = got; });
}

CLI::Option* add_integers(CLI::App& command, const std::string& name, std::vector<std::int32_t>& values,
                          const std::string& description, IntegerRange range) {
  return add_text(
      command, name, description, kIntegersType,
      [range, &values](const std::string& own, const std::string& text) {
        std::vector<std::int32_t> read;
        for (std::size_t begin = 0; begin <= text.size();) {
          const std::size_t end = std::min(text.find(',', begin), text.size());
          const std::string_view one = std::string_view(text).substr(begin, end - begin);
          const std::optional<std::uint64_t> number = decimal_integer(one, range);
          if (!number) {
            refuse(own, one,
                   text_of(range) + " as value " + std::to_string(read.size() + 1) + " of " + "\"" + text + "\"");
          }
          read.push_back(static_cast<std::int32_t>(*number));
          begin = end + 1;
        }
        values = std::move(read);
      },
      {});
}

CLI::Option* add_number(CLI::App& command, const std::string& name, double& value, const std::string& description,
                        double low, double high) {
  const std::string range = short_number(low) + " - " + short_number(high);
  return add_text(
      command, name, description, "FLOAT in [" + range + "]",
      [low, high, &value](const std::string& own, const std::string& text) {
        double number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        // A NaN fails the comparison, too.
        if (error != std::errc() || end != text.data() + text.size() || !(number >= low && number <= high)) {
          refuse(own, text, "a number from " + short_number(low) + " to " + short_number(high));
        }
        value = number;
      },
      [&value] { return short_number(value); });
}

CLI::Option* add_size(CLI::App& command, const std::string& name, std::uint64_t& bytes, const std::string& description,
                      IntegerRange range) {
  return add_text(
      command, name, description, "SIZE",
      [range, &bytes](const std::string& own, const std::string& text) {
        const std::optional<double> size = bytes_in(text);
        // A NaN fails the comparison, too.
        if (!size || !(*size >= static_cast<double>(range.low) && *size <= static_cast<double>(range.high))) {
          refuse(own, text,
                 "a size from " + std::to_string(range.low) + " to " + std::to_string(range.high) +
                     " bytes, as 4096, 4KiB or 1.5GB");
        }
        bytes = static_cast<std::uint64_t>(*size);
      },
      {});
}

}  // namespace droptest::cli
