// SPDX-License-Identifier: Apache-2.0
#include "sim/time/straggler.h"

#include <boost/random/normal_distribution.hpp>
#include <cmath>
#include <string>

#include "sim/error.h"

namespace droptest::sim {
namespace {

// The 99th percentile of the standard normal distribution.
constexpr double kNormal99 = 2.3263478740408408;

// Words that one factor may draw: the ziggurat of Boost.Random takes two, and more with a probability below 2 %.
constexpr std::uint64_t kWordsPerFactor = 1024;

}  // namespace

Straggler::Straggler(double p99_over_p50) : ratio_(p99_over_p50), sigma_(std::log(p99_over_p50) / kNormal99) {
  DROPTEST_CHECK(p99_over_p50 >= 1, "p99/p50 of " + std::to_string(p99_over_p50));
}

double Straggler::factor(std::uint64_t seed, Purpose purpose, std::uint64_t stream, std::uint64_t index) const {
  if (sigma_ == 0) return 1;
  PhiloxEngine engine(seed, purpose, stream);
  engine.seek(index * kWordsPerFactor);
  boost::random::normal_distribution<double> normal;
  return std::exp(sigma_ * normal(engine));
}

double Straggler::mean() const { return std::exp(sigma_ * sigma_ / 2); }

}  // namespace droptest::sim
