// SPDX-License-Identifier: Apache-2.0
// Which part of a whole tensor one rank holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace droptest::models {

/// Indices first, first + 1, ..., first + count - 1 of one dimension.
struct IndexRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// The part `rank` of `count` items dealt out in order, as comm::even_counts does: the first parts have one more.
IndexRange dealt_range(std::uint64_t count, int ranks, int rank);

/// A part of a tensor of one or two dimensions: along `axis` the ranges, one after another, and along the other
/// dimension everything. Behind the ranges the part may have padding rows that the whole tensor does not have.
struct TensorSlice {
  std::vector<std::uint64_t> full_shape;
  std::size_t axis = 0;
  std::vector<IndexRange> ranges;
  std::uint64_t padding = 0;  ///< only along axis 0

  /// All of the tensor.
  static TensorSlice whole(std::vector<std::uint64_t> shape);

  std::vector<std::uint64_t> local_shape() const;
  std::uint64_t full_elems() const;
  std::uint64_t local_elems() const;

  /// Calls body(full_offset, local_offset, count_elems) for each contiguous run, in order of the whole tensor;
  /// padding is in none.
  template <class Body>
  void for_each_run(const Body& body) const;
};

template <class Body>
void TensorSlice::for_each_run(const Body& body) const {
  if (axis == 0) {
    const std::uint64_t row = full_shape.size() > 1 ? full_shape[1] : 1;
    std::uint64_t local = 0;
    for (const IndexRange& range : ranges) {
      if (range.count > 0) body(range.first * row, local, range.count * row);
      local += range.count * row;
    }
    return;
  }
  std::uint64_t local = 0;
  for (std::uint64_t i = 0; i < full_shape[0]; ++i) {
    for (const IndexRange& range : ranges) {
      if (range.count > 0) body(i * full_shape[1] + range.first, local, range.count);
      local += range.count;
    }
  }
}

}  // namespace droptest::models
