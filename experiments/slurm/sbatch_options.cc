// SPDX-License-Identifier: Apache-2.0
#include "experiments/slurm/sbatch_options.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "sim/error.h"

namespace droptest::experiments {
namespace {

struct ReservedOption {
  std::string_view name;
  char letter;  ///< 0: it has none
  std::string_view reason;
};

constexpr std::array<ReservedOption, 14> kReservedOptions = {{
    {"array", 'a', "droptest numbers the tasks; use --array-limit for the number of tasks at once"},
    {"ntasks", 'n', "it is the number of the ranks' processes, from the spec"},
    {"requeue", 0, "droptest sets it: a task that is started again trains the runs without a result alone"},
    {"no-requeue", 0, "droptest sets --requeue"},
    {"chdir", 'D', "paths of the spec start from the folder of the submission"},
    {"wrap", 0, "droptest writes the batch script"},
    {"parsable", 0, "droptest reads the job id"},
    {"quiet", 'Q', "droptest reads the job id; use droptest's own --quiet, before the --"},
    {"wait", 'W', "a submission does not wait for its jobs; use squeue"},
    {"test-only", 0, "it submits nothing; use droptest's own --dry-run, before the --"},
    {"clusters", 'M', "squeue asks the cluster of this machine; submit from a machine of the other cluster"},
    {"help", 'h', "it submits nothing"},
    {"usage", 0, "it submits nothing"},
    {"version", 'V', "it submits nothing"},
}};

/// Letters of options without a value, after which another letter may follow: -Hs is -H -s.
constexpr std::string_view kLettersWithoutValue = "HIkOQsvVWh";

[[noreturn]] void refuse(const std::string& word, const ReservedOption& option) {
  throw ConfigError("options of sbatch: got " + word + ", want none of --" + std::string(option.name) + ": " +
                    std::string(option.reason));
}

/// sbatch takes a beginning of a name for the name.
void check_long_option(const std::string& word) {
  const std::string_view name = std::string_view(word).substr(2, word.find('=') - 2);
  for (const ReservedOption& option : kReservedOptions) {
    if (option.name.starts_with(name)) refuse(word, option);
  }
}

void check_letters(const std::string& word) {
  for (const char letter : std::string_view(word).substr(1)) {
    const auto* const found = std::find_if(kReservedOptions.begin(), kReservedOptions.end(),
                                           [letter](const ReservedOption& o) { return o.letter == letter; });
    if (found != kReservedOptions.end()) refuse(word, *found);
    if (kLettersWithoutValue.find(letter) == std::string_view::npos) return;  // its value follows
  }
}

}  // namespace

void check_sbatch_options(const std::vector<std::string>& words) {
  if (words.empty()) return;
  if (!words.front().starts_with('-')) {
    throw ConfigError("sweep: got \"" + words.front() +
                      "\" beyond its last argument; options of sbatch follow --, as in -- --partition=gpu");
  }
  for (const std::string& word : words) {
    if (word == "--" || word == "-") throw ConfigError("options of sbatch: got " + word + ", want --name=value");
    if (word.starts_with("--")) {
      check_long_option(word);
    } else if (word.starts_with('-')) {
      check_letters(word);
    }
  }
}

bool asks_for_gpus(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("--gpus") || word.starts_with("--gres") || word.starts_with("-G") ||
           word.starts_with("--tres-per-");
  });
}

}  // namespace droptest::experiments
