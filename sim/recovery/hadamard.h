// SPDX-License-Identifier: Apache-2.0
// The randomised Hadamard transform: spreads every element over its whole block, and so every loss.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace droptest::sim {

/// y = H D x / sqrt(b) on each block of b elements; D has random signs, and H is the Hadamard matrix in natural order.
/// The elements after the last whole block are cut into blocks of falling powers of two. Orthonormal: energy is
/// preserved and the inverse is D H / sqrt(b). Linear, and the signs depend only on the position: a sum of transforms
/// is the transform of the sum, also over ranks and steps. The inverse of the forward transform gives the input back to
/// rounding, not bitwise.
/// Cost: O(log b) operations per element.
/// Source: Ailon and Chazelle, STOC 2006 (HD); Hadamard coding of gradients in OptiReduce, NSDI 2025.
class RandomisedHadamard {
 public:
  static constexpr std::uint64_t kMostBlock = std::uint64_t{1} << 24;

  /// Signs come from (seed, Purpose::kHadamardSigns, stream). Throws: ConfigError unless block_elems is a power of two
  /// in [2, 2^24].
  RandomisedHadamard(std::uint64_t seed, std::uint64_t stream, std::uint64_t block_elems);

  /// Transform in place. T is float or double. Thread safety: none, because drawn signs are stored for later calls.
  template <class T>
  void forward(std::span<T> values);
  template <class T>
  void inverse(std::span<T> values);

 private:
  void draw_signs(std::uint64_t count);

  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t block_elems_;
  std::vector<float> signs_;  // +1 or -1 by position in the message
};

}  // namespace droptest::sim
