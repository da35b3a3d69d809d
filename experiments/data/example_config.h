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

  /// The members by their names in the section /data of a spec.
  void visit_members(const auto& visit) {
    visit("examples", training);
    visit("validation_examples", validation);
    visit("layout", layout);
    visit("labels", labels);
    visit("separator", separator);
    visit("too_long", too_long, {{"cut", TooLong::kCut}, {"refuse", TooLong::kRefused}});
  }
};

}  // namespace droptest::experiments
