// SPDX-License-Identifier: Apache-2.0
// Statistics of the deviations of counts from their theory, over seeds.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

namespace droptest {

/// The mean of independent values, with the standard error from their scatter.
struct MeanWithError {
  double mean = 0;
  double error = 0;

  explicit MeanWithError(const std::vector<double>& values) {
    const auto number = static_cast<double>(values.size());
    for (const double value : values) mean += value / number;
    double squares = 0;
    for (const double value : values) squares += (value - mean) * (value - mean);
    error = std::sqrt(squares / (number - 1) / number);
  }
};

/// Expects z values of independent counts with mean 0 and variance 1, within four standard errors.
inline void expect_standard(const std::vector<double>& z) {
  std::vector<double> squares;
  for (const double value : z) squares.push_back(value * value);
  const MeanWithError mean(z);
  const MeanWithError variance(squares);
  EXPECT_LT(std::fabs(mean.mean), 4 * mean.error) << "mean of z";
  EXPECT_LT(std::fabs(variance.mean - 1), 4 * variance.error) << "variance of z: " << variance.mean;
}

}  // namespace droptest
