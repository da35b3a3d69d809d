// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/sample_order.h"

#include <string>
#include <utility>

#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::experiments {
namespace {

/// A strong pseudo-random permutation has four rounds. More are needed here, because halves of few bits mix slowly.
constexpr std::uint64_t kRounds = 8;
constexpr std::uint64_t kWordsPerBlock = 4;

}  // namespace

SampleOrder::SampleOrder(std::uint64_t seed, std::uint64_t samples) : seed_(seed), samples_(samples) {
  DROPTEST_CHECK(samples <= std::uint64_t{1} << 62U, std::to_string(samples) + " samples");
  while (2 * half_bits_ < 62 && (std::uint64_t{1} << (2 * half_bits_)) < samples) ++half_bits_;
}

std::uint64_t SampleOrder::at(std::uint64_t epoch, std::uint64_t index) const {
  DROPTEST_CHECK(index < samples_, "sample " + std::to_string(index) + " of " + std::to_string(samples_));
  // The walk follows the cycle of `index` in the larger permutation, so it ends: the cycle has at least one sample.
  std::uint64_t value = permuted(epoch, index);
  while (value >= samples_) value = permuted(epoch, value);
  return value;
}

std::uint64_t SampleOrder::permuted(std::uint64_t epoch, std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  sim::PhiloxEngine engine(seed_, sim::Purpose::kSampleOrder, epoch);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    engine.seek(kWordsPerBlock * (round << 32U | right));
    left = (left ^ engine()) & mask;
    std::swap(left, right);
  }
  return left << half_bits_ | right;
}

}  // namespace droptest::experiments
