// SPDX-License-Identifier: Apache-2.0
// The messages of a class that always arrive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace droptest::comm {

/// A message is protected if any member names it. It uses up its packets like any other message, so the other messages
/// keep their fates.
struct Protection {
  /// Protected steps: from <= step < until.
  struct Steps {
    std::uint64_t from = 0;
    std::uint64_t until = 0;
  };
  std::vector<int> layers;  ///< protected transformer blocks
  std::optional<Steps> steps;
  std::vector<std::string> names;  ///< names of protected messages; `*` stands for any characters

  bool covers(const Message& message, std::uint64_t step) const;
  bool empty() const { return layers.empty() && !steps.has_value() && names.empty(); }
};

/// Whether `name` matches `pattern`; `*` stands for any number of any characters.
bool matches_pattern(std::string_view pattern, std::string_view name);

}  // namespace droptest::comm
