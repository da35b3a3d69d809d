// SPDX-License-Identifier: Apache-2.0
// Random delays of computation and transfers: a factor with a given tail.
#pragma once

#include <cstdint>

#include "sim/random/philox.h"

namespace droptest::sim {

/// A lognormal factor with median 1 and a given ratio of its 99th percentile to its median. At ratio 1 it is 1.
/// Source: tails of cloud networks, p99/p50 from 1.5 to 3, OptiReduce (NSDI 2025).
class Straggler {
 public:
  /// Throws: CheckError for a ratio below 1.
  explicit Straggler(double p99_over_p50);

  /// The factor of one event: a pure function of its arguments, above 0.
  double factor(std::uint64_t seed, Purpose purpose, std::uint64_t stream, std::uint64_t index) const;

  /// exp(sigma^2 / 2), sigma = ln(p99/p50) / 2.3263.
  double mean() const;
  double sigma() const { return sigma_; }
  double p99_over_p50() const { return ratio_; }

 private:
  double ratio_;
  double sigma_;
};

}  // namespace droptest::sim
