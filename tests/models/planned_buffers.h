// SPDX-License-Identifier: Apache-2.0
// The buffers of a memory plan that must not overlap, found by comparing all their times.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "models/ops/memory_plan.h"

namespace droptest::models {

/// All uses of the buffer, each from its first to its last time.
inline std::vector<std::pair<int, int>> times_of_use(const PlannedBuffer& buffer) {
  std::vector<std::pair<int, int>> times = buffer.earlier;
  times.emplace_back(buffer.first_time, buffer.last_time);
  return times;
}

/// Whether both buffers are in use at some time.
inline bool in_use_at_once(const PlannedBuffer& a, const PlannedBuffer& b) {
  return std::ranges::any_of(times_of_use(a), [&](const auto& of_a) {
    return std::ranges::any_of(
        times_of_use(b), [&](const auto& of_b) { return of_a.first <= of_b.second && of_b.first <= of_a.second; });
  });
}

}  // namespace droptest::models
