// SPDX-License-Identifier: Apache-2.0
// Paths by name: the one list that a new path is added to.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/lossy/path.h"

namespace droptest::comm {

/// Which halves a spec's `loss` stands for where it names no half.
enum class LossShorthand : std::uint8_t { kBothHalves, kReduceHalf };

/// Whether the ranks of a group end with equal results where a lossless collective gives equal ones.
enum class RankEquality : std::uint8_t {
  kStayEqual,       ///< under the shorthand loss, always
  kReduceHalfOnly,  ///< gather-half loss per receiver makes them differ; `shared` keeps them equal
};

/// Whether a path corrects its sends by PathContext::feedback.
enum class SenderFeedback : std::uint8_t { kNone, kCorrectsSends };

struct PathEntry {
  std::string_view name;
  std::string_view summary;
  RankEquality equality;
  LossShorthand shorthand;
  std::unique_ptr<Path> (*make)(const PathContext&);
  SenderFeedback feedback = SenderFeedback::kNone;
};

/// All known paths, in the order in which they are listed.
const std::vector<PathEntry>& paths();

/// Throws: ConfigError that lists the known names.
const PathEntry& path_entry(std::string_view name);

}  // namespace droptest::comm
