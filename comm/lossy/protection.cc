// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/protection.h"

#include <algorithm>

namespace droptest::comm {

// The latest star matches as few characters as possible; if the rest does not match, it takes one more.
bool matches_pattern(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t after_star = std::string_view::npos;
  std::size_t star_end = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_end = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (after_star != std::string_view::npos) {
      p = after_star;
      n = ++star_end;
    } else {
      return false;
    }
  }
  return pattern.substr(p).find_first_not_of('*') == std::string_view::npos;
}

bool Protection::covers(const Message& message, std::uint64_t step) const {
  if (steps.has_value() && step >= steps->from && step < steps->until) return true;
  if (message.layer >= 0 && std::ranges::find(layers, message.layer) != layers.end()) return true;
  return std::ranges::any_of(names, [&message](const std::string& n) { return matches_pattern(n, message.name); });
}

}  // namespace droptest::comm
