// SPDX-License-Identifier: Apache-2.0
// Any lines as the arguments of droptest; the command is not run. Only CLI11's errors may come out, and the text of a
// number that a command accepted is what --help shows of its option: decimal digits in the range.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "experiments/cli/commands.h"
#include "sim/error.h"

namespace {

/// "[3 - 4096]" of a type: its two ends; without it, all numbers.
std::pair<double, double> range_of(const std::string& type) {
  const std::size_t begin = type.find('[');
  if (begin == std::string::npos) return {-INFINITY, INFINITY};
  const std::size_t dash = type.find(" - ", begin);
  const std::string high = type.substr(dash + 3);
  return {std::stod(type.substr(begin + 1)), high.starts_with("2^64") ? 0x1p64 : std::stod(high)};
}

void check_integer(const CLI::Option& option, const std::string& text) {
  const auto [low, high] = range_of(option.get_type_name());
  const bool is_decimal = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  DROPTEST_CHECK(is_decimal, option.get_name() + ": digits: " + text);
  const double number = std::stod(text);
  DROPTEST_CHECK(number >= low && number <= high, option.get_name() + ": range: " + text);
}

void check_option(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  for (const std::string& text : option.results()) {
    if (type == "INT,...") {
      std::istringstream list(text + ",");
      for (std::string one; std::getline(list, one, ',');) check_integer(option, one);
    } else if (type == "INT" || type.starts_with("INT in")) {
      check_integer(option, text);
    } else if (type.starts_with("FLOAT in")) {
      const auto [low, high] = range_of(type);
      const bool is_number = text.find_first_not_of("0123456789+-.eE") == std::string::npos;
      DROPTEST_CHECK(is_number && std::stod(text) >= low && std::stod(text) <= high, option.get_name() + ": " + text);
    } else if (type == "SIZE") {
      DROPTEST_CHECK(!text.empty() && text[0] != '-' && text[0] != '+', option.get_name() + ": " + text);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static droptest::cli::Action chosen;
  static const std::unique_ptr<CLI::App> kApp = [] {  // parsing begins anew each time
    auto commands = std::make_unique<CLI::App>();
    droptest::cli::add_commands(*commands, chosen);
    return commands;
  }();
  CLI::App& app = *kApp;
  chosen = nullptr;
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  std::vector<std::string> arguments;
  for (std::string line; std::getline(lines, line);) arguments.insert(arguments.begin(), line);  // CLI11 takes the last
  try {
    app.parse(arguments);
  } catch (const CLI::Error&) {
    return 0;
  }
  std::vector<const CLI::App*> commands = {&app};
  while (!commands.empty()) {
    const CLI::App* command = commands.back();
    commands.pop_back();
    for (const CLI::App* inner : command->get_subcommands()) commands.push_back(inner);
    for (const CLI::Option* option : command->get_options()) check_option(*option);
  }
  DROPTEST_CHECK(static_cast<bool>(chosen), "a command was chosen");
  return 0;
}
