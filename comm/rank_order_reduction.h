// SPDX-License-Identifier: Apache-2.0
// The one reduction of all our backends: in rank order, so that equal inputs give equal bits everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace droptest::comm {

/// A block of the sum stays in the first-level cache while every rank's input streams by once.
inline constexpr std::size_t kReductionBlockBytes = 8192;

/// Writes ((x0 op x1) op x2) ... to every output. x_r starts at inputs[r], and each range has count_elems elements.
/// An output may be one of the inputs; other overlaps are not allowed. A NaN is the maximum of anything.
/// Determinism: the order of the inputs is the order of the operations, for each element.
void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems);

/// Elements [begin, end) of a reduction that some inputs have no part in.
struct ReductionGap {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::span<const std::byte* const> present;  ///< the others in their order, each from element `begin` on; at least one
  std::span<const std::byte* const> absent;   ///< what has no part, likewise; never used but as a place in memory
  std::span<const double> factors;            ///< as those of the whole reduction, for each of `present`
  double scale = 1;                           ///< multiplies the reduction, rounded to the type (to float for bfloat16)
};

/// Elements [begin, end) that become zero in one output, whatever the reduction is.
struct OutputGap {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t output = 0;
};

/// What is missing in a reduction.
struct ReductionGaps {
  std::span<const ReductionGap> inputs;  ///< in order and apart
  std::span<const OutputGap> outputs;    ///< begins and ends in order
  /// Multiplies each input, rounded to the type before it is added; empty: none is multiplied. Not for integers.
  std::span<const double> factors;
};

/// The same with gaps, in one pass over the memory.
void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems, const ReductionGaps& gaps);

}  // namespace droptest::comm
