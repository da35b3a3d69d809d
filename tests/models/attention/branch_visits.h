// SPDX-License-Identifier: Apache-2.0
// The number of branches of dilated attention in which a query sees a key.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "models/attention/dilated_plan.h"

namespace droptest::models {

/// Directly from the definition: token t is in segment t / w, and head h takes every r-th token of it from h mod r on.
inline std::int64_t visits(const std::vector<DilatedBranch>& branches, std::int64_t h, std::int64_t q, std::int64_t k) {
  std::int64_t count = 0;
  for (const auto& [w, r] : branches) {
    for (std::int64_t segment = 0; segment <= q; segment += w) {
      bool has_query = false;
      bool has_key = false;
      for (std::int64_t t = segment + h % r; t < segment + w; t += r) {
        has_query = has_query || t == q;
        has_key = has_key || t == k;
      }
      count += has_query && has_key ? 1 : 0;
    }
  }
  return count;
}

/// The addend of a score with which the key counts once for each branch.
inline double log_visits(const std::vector<DilatedBranch>& branches, std::int64_t h, std::int64_t q, std::int64_t k) {
  const std::int64_t count = visits(branches, h, q, k);
  return count == 0 ? -std::numeric_limits<double>::infinity() : std::log(static_cast<double>(count));
}

}  // namespace droptest::models
