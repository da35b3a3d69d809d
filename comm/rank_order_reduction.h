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

/// Writes ((x0 op x1) op x2) ... to every output, divided by the number of inputs for a mean. x_r starts at inputs[r],
/// and each range has count_elems elements. An output may be one of the inputs; other overlaps are not allowed. A NaN
/// is larger than any other value. Determinism: the order of the inputs is the order of the operations, for each
/// element.
void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems);

/// Elements [begin, end) of a reduction from which some inputs are missing.
struct ReductionGap {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::span<const std::byte* const> present;  ///< the reduced inputs, in order, from element `begin` on; at least one
  /// The missing inputs, in order, from element `begin` on: places in memory, never read.
  std::span<const std::byte* const> absent;
  std::span<const double> factors;  ///< factors of the inputs in `present`, as for the whole reduction
  double divisor = 1;               ///< divides the reduction before it is rounded, for a mean
  double scale = 1;                 ///< multiplies the reduction, rounded to the type (to float for bfloat16)
};

/// Elements [begin, end) that become zero in some outputs, for every reduction.
struct OutputGap {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::span<const std::size_t> outputs;  ///< ascending
};

/// The missing inputs and outputs of a reduction, found during the reduction: gaps come in order, do not overlap, and
/// are valid until the next one of their kind.
class ReductionGaps {
 public:
  virtual ~ReductionGaps() = default;
  /// A factor for each input; products are rounded to the type before the addition. Empty: no factors. Integers have no
  /// factors.
  virtual std::span<const double> factors() const = 0;
  /// Null: no more.
  virtual const ReductionGap* next_input_gap() = 0;
  virtual const OutputGap* next_output_gap() = 0;
};

/// Reduces with gaps, in one pass over the memory.
void reduce_in_rank_order(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                          std::span<std::byte* const> outputs, std::uint64_t count_elems, ReductionGaps& gaps);

}  // namespace droptest::comm
