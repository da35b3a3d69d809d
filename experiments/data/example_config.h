// SPDX-License-Identifier: Apache-2.0
// Labelled texts, as a resolved spec describes them (docs/classification.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace droptest::experiments {

struct ExampleConfig {
  std::string training;             ///< file of examples to train on
  std::string validation;           ///< empty: the last part of the training file validates
  std::string layout = "plain";     ///< name of the columns' layout
  std::vector<std::string> labels;  ///< names of the classes, in order
  std::string separator = "\n";     ///< text between the two texts of a pair
  /// The treatment of an example with more tokens than a sequence has.
  enum class TooLong : std::uint8_t { kCut, kRefused } too_long = TooLong::kCut;
};

}  // namespace droptest::experiments
