// SPDX-License-Identifier: Apache-2.0
// Sums and maxima in a fixed order that vectorises: element i belongs to lane i mod 16, and lanes are added pairwise.
#pragma once

#include <cstdint>
#include <limits>

namespace droptest::models {

inline constexpr std::int64_t kLanes = 16;

/// The sum over i < count of term(i). Determinism: depends only on the terms and their number, not on addresses.
template <class T, class Term>
T lane_sum(std::int64_t count, const Term& term) {
  T lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += term(i + l);
  }
  for (std::int64_t l = 0; i < count; ++i, ++l) lanes[l] += term(i);
  for (std::int64_t distance = kLanes / 2; distance > 0; distance /= 2) {
    for (std::int64_t l = 0; l < distance; ++l) lanes[l] += lanes[l + distance];
  }
  return lanes[0];
}

/// The largest of `count` values; minus infinity if there are none. A NaN may be ignored; the sums that follow
/// propagate it.
template <class T>
T lane_max(const T* values, std::int64_t count) {
  T lanes[kLanes];
  for (T& lane : lanes) lane = -std::numeric_limits<T>::infinity();
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = lanes[l] < values[i + l] ? values[i + l] : lanes[l];
  }
  for (std::int64_t l = 0; i < count; ++i, ++l) lanes[l] = lanes[l] < values[i] ? values[i] : lanes[l];
  for (std::int64_t distance = kLanes / 2; distance > 0; distance /= 2) {
    for (std::int64_t l = 0; l < distance; ++l)
      lanes[l] = lanes[l] < lanes[l + distance] ? lanes[l + distance] : lanes[l];
  }
  return lanes[0];
}

}  // namespace droptest::models
