// SPDX-License-Identifier: Apache-2.0
// The order of the samples of an epoch: a permutation that is computed, not stored.
#pragma once

#include <cstdint>

namespace droptest::experiments {

/// A pseudo-random permutation of [0, samples) for each epoch, by a balanced Feistel network over the smallest even
/// number of bits that holds every sample, with cycle walking: a value beyond the last sample goes through the network
/// again. The round function is Philox with the run's data seed as key, purpose kSampleOrder and the epoch as stream.
/// Source: Black and Rogaway, CT-RSA 2002 (cycle walking); Luby and Rackoff 1988 (Feistel networks as permutations).
/// Determinism: a pure function of (seed, samples, epoch, index). Thread safety: const.
class SampleOrder {
 public:
  /// Throws: CheckError for samples beyond 2^62.
  SampleOrder(std::uint64_t seed, std::uint64_t samples);
  /// The sample at place `index` < samples of the epoch.
  std::uint64_t at(std::uint64_t epoch, std::uint64_t index) const;
  std::uint64_t samples() const { return samples_; }

 private:
  std::uint64_t permuted(std::uint64_t epoch, std::uint64_t value) const;

  std::uint64_t seed_;
  std::uint64_t samples_;
  unsigned half_bits_ = 1;
};

}  // namespace droptest::experiments
