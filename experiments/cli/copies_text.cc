// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/copies_text.h"

#include <cmath>
#include <sstream>

namespace droptest::cli {

std::string copies_text(double largest_difference, int pipeline) {
  if (largest_difference == 0) return "";
  std::ostringstream text;
  text << "; those of the lowest rank"
       << (pipeline > 1 ? ", and the token embedding of the stage with the LM head" : "")
       << ": copies of ranks differ by ";
  if (std::isfinite(largest_difference)) {
    text << "up to " << largest_difference;
  } else {
    text << "numbers that are not finite";
  }
  return text.str();
}

}  // namespace droptest::cli
