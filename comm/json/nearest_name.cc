// SPDX-License-Identifier: Apache-2.0
#include "comm/json/nearest_name.h"

#include <algorithm>
#include <cctype>

namespace droptest::comm {
namespace {

/// Optimal string alignment distance; letters that differ only in case are equal.
std::size_t edits(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  };
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = d[i - 1][j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  constexpr std::size_t kLongest = 64;  // longer ones are no slip of the finger, and the table is quadratic
  if (name.size() > kLongest) return {};
  std::string best;
  std::size_t fewest = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edits(name, candidate);
    if (distance < fewest && distance < candidate.size()) {
      fewest = distance;
      best = candidate;
    }
  }
  return best;
}

std::string known_names_hint(std::string_view name, const std::vector<std::string>& known, std::string_view kind) {
  std::string hint;
  if (const std::string nearest = nearest_name(name, known); !nearest.empty()) {
    hint = "did you mean \"" + nearest + "\"? ";
  }
  hint += "known " + std::string(kind) + ": ";
  for (std::size_t i = 0; i < known.size(); ++i) hint += (i > 0 ? ", " : "") + known[i];
  return hint + (known.empty() ? "none" : "");
}

}  // namespace droptest::comm
