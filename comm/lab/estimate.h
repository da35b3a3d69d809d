// SPDX-License-Identifier: Apache-2.0
// Means over the trials of an experiment, with their errors.
#pragma once

#include <optional>
#include <vector>

namespace droptest::comm {

/// A mean over trials. `standard_error` is NaN for a single trial.
struct Estimate {
  double measured = 0;
  double standard_error = 0;
  std::optional<double> expected;  ///< exact value, if a closed form exists
};

/// Mean of `values`, at least one, with its standard error.
Estimate mean_of(const std::vector<double>& values, std::optional<double> expected);

/// Ratio of sums R = sum a / sum b. Its standard error is that of a ratio of means (delta method): the standard error
/// of the mean of (a - R b) / mean(b). Shapes: equal and not empty.
Estimate ratio_of(const std::vector<double>& a, const std::vector<double>& b, std::optional<double> expected);

}  // namespace droptest::comm
