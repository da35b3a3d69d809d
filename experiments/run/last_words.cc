// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/last_words.h"

#include <fstream>
#include <string_view>

namespace droptest::experiments {

std::string last_words(const std::string& log_path) {
  constexpr std::string_view kPrefix = "droptest: error: ";
  std::ifstream log(log_path);
  std::string last;
  for (std::string line; std::getline(log, line);) {
    if (!line.empty()) last = line;
  }
  return last.starts_with(kPrefix) ? last.substr(kPrefix.size()) : last;
}

}  // namespace droptest::experiments
