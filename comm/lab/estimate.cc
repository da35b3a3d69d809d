// SPDX-License-Identifier: Apache-2.0
#include "comm/lab/estimate.h"

#include <cmath>
#include <limits>

namespace droptest::comm {

Estimate mean_of(const std::vector<double>& values, std::optional<double> expected) {
  return ratio_of(values, std::vector<double>(values.size(), 1.0), expected);
}

Estimate ratio_of(const std::vector<double>& a, const std::vector<double>& b, std::optional<double> expected) {
  const auto n = static_cast<double>(a.size());
  double sum_a = 0;
  double sum_b = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    sum_a += a[t];
    sum_b += b[t];
  }
  const double ratio = sum_a / sum_b;
  double squares = 0;
  for (std::size_t t = 0; t < a.size(); ++t) squares += (a[t] - ratio * b[t]) * (a[t] - ratio * b[t]);
  const double error =
      n > 1 ? std::sqrt(squares / (n * (n - 1))) / (sum_b / n) : std::numeric_limits<double>::quiet_NaN();
  return {ratio, error, expected};
}

}  // namespace droptest::comm
