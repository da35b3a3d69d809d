// SPDX-License-Identifier: Apache-2.0
// Any lines as the arguments of a command. Only CLI11's errors may come out, and an accepted number is what its decimal
// digits say, within its range.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "experiments/cli/number_options.h"
#include "sim/error.h"

namespace {

/// By another way than the parser's: digit for digit.
bool says(const std::string& text, std::uint64_t number) {
  std::string digits = text.substr(std::min(text.find_first_not_of('0'), text.size() - 1));
  return digits == std::to_string(number);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace droptest::cli;  // NOLINT: the whole program is about one namespace
  CLI::App app;
  std::uint64_t seed = 1;
  int jobs = 3;
  std::vector<std::int32_t> tokens;
  double seconds = 1;
  std::uint64_t bytes = 8;
  const CLI::Option* const seed_option = add_integer(app, "--seed", seed, "", {});
  const CLI::Option* const jobs_option = add_integer(app, "--jobs,-j", jobs, "", {3, 4096});
  const CLI::Option* const tokens_option = add_integers(app, "--tokens", tokens, "", {0, 50256});
  add_number(app, "--seconds", seconds, "", 0.1, 3600);
  add_size(app, "--bytes", bytes, "", {8, std::uint64_t{1} << 40});
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  std::vector<std::string> arguments;
  for (std::string line; std::getline(lines, line);) arguments.insert(arguments.begin(), line);  // CLI11 takes the last
  try {
    app.parse(arguments);
  } catch (const CLI::Error&) {
    return 0;
  }
  DROPTEST_CHECK(seed_option->count() == 0 || says(seed_option->results().at(0), seed), "--seed");
  DROPTEST_CHECK(jobs_option->count() == 0 || says(jobs_option->results().at(0), static_cast<std::uint64_t>(jobs)),
                 "--jobs");
  DROPTEST_CHECK(jobs >= 3 && jobs <= 4096, "the range of --jobs");
  DROPTEST_CHECK(seconds >= 0.1 && seconds <= 3600, "the range of --seconds");
  DROPTEST_CHECK(bytes >= 8 && bytes <= std::uint64_t{1} << 40, "the range of --bytes");
  if (tokens_option->count() == 0) return 0;
  std::istringstream list(tokens_option->results().at(0) + ",");
  std::size_t count = 0;
  for (std::string one; std::getline(list, one, ','); ++count) {
    DROPTEST_CHECK(says(one, static_cast<std::uint64_t>(tokens.at(count))), "--tokens");
  }
  DROPTEST_CHECK(count == tokens.size(), "the number of --tokens");
  return 0;
}
