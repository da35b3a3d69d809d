// SPDX-License-Identifier: Apache-2.0
// Numbers for tests of kernels, and tolerances of results.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/models/formula_model.h"

namespace droptest::models {

template <class T>
std::vector<T> numbers(std::uint64_t stream, std::int64_t count) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<T>(mixed(stream, static_cast<std::uint64_t>(i))));
  return values;
}

/// The rounding of sums of a few hundred products of numbers below 1.
template <class T>
inline constexpr double kBound = sizeof(T) == 4 ? 2e-5 : 1e-13;

template <class T>
void expect_near(const std::vector<T>& got, const std::vector<T>& want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << "element " << i;
}

using ElementTypes = testing::Types<float, double>;

}  // namespace droptest::models
