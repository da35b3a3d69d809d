// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/probability.h"

#include <charconv>

#include "sim/error.h"
#include "sim/random/threshold.h"

namespace droptest::sim {

bool is_drawable(double probability) {
  return probability == 0 || (probability >= kSmallestProbability && probability <= 1);
}

void require_drawable(std::string_view what, double probability) {
  if (is_drawable(probability)) return;
  throw ConfigError(std::string(what) + ": got " + shortest_text(probability) + ", want " + std::string(kDrawable));
}

std::string shortest_text(double number) {
  char text[40];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, number);
  return {text, end.ptr};
}

}  // namespace droptest::sim
