// SPDX-License-Identifier: Apache-2.0
// The part of a whole tensor that one rank has.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace droptest::models {

/// The indices first, ..., first + count - 1 of one dimension.
struct IndexRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// Part `rank` of `count` items that are distributed in order, as in comm::even_counts(): the first parts have one item
/// more.
IndexRange dealt_range(std::uint64_t count, int ranks, int rank);

/// A part of a tensor of one or two dimensions: the ranges along `axis`, one after the other, with everything along the
/// other dimension. After the ranges, the part may have padding rows that the whole tensor does not have.
struct TensorSlice {
  std::vector<std::uint64_t> full_shape;
  std::size_t axis = 0;
  std::vector<IndexRange> ranges;
  std::uint64_t padding = 0;  ///< only along axis 0

  /// The slice of the whole tensor.
  static TensorSlice whole(std::vector<std::uint64_t> shape);

  std::vector<std::uint64_t> local_shape() const;
  std::uint64_t full_elems() const;
  std::uint64_t local_elems() const;

  /// Calls body(full_offset, local_offset, count_elems) for each contiguous run, in the order of the whole tensor.
  /// Padding is in no run.
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
