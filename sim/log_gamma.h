// SPDX-License-Identifier: Apache-2.0
// The logarithm of the gamma function, for threads.
#pragma once

#include <math.h>

namespace droptest::sim {

/// ln |Gamma(x)|, with the bits of std::lgamma, which writes the global variable `signgam` and so is not thread-safe.
/// Thread safety: may be called from any thread.
inline double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

}  // namespace droptest::sim
