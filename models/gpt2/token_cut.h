// SPDX-License-Identifier: Apache-2.0
// The cut of a micro-batch's tokens over tensor-parallel ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace droptest::models {

/// The rows of the residual stream that a tensor-parallel rank has. Whole: all rows. Cut: consecutive rows, as many on
/// each rank as comm::even_counts() gives; a rank may have none. Source: Korthikanti et al. 2022, section 4.2.2.
struct TokenCut {
  std::int64_t rows = 0;                ///< rows of the micro-batch
  std::vector<std::uint64_t> counts{};  ///< rows of each rank; empty: every rank has all rows
  int rank = 0;

  static TokenCut whole(std::int64_t rows) { return {rows, {}, 0}; }
  static TokenCut even(std::int64_t rows, int ranks, int rank);

  bool is_cut() const { return !counts.empty(); }
  /// The number of this rank's rows, and the first of them.
  std::int64_t own_rows() const;
  std::int64_t first_row() const;
  /// The number of elements of each rank's rows of that width.
  std::vector<std::uint64_t> elems(std::int64_t width) const;
};

/// Cuts the rows first, ..., first + count - 1 of [batch, length] into parts, each of several whole sequences or of one
/// part of a sequence, and calls body(row, sequences, position, tokens) for each part. `row` counts from `first`.
template <class Body>
void for_sequence_parts(std::int64_t first, std::int64_t count, std::int64_t length, const Body& body) {
  for (std::int64_t row = 0; row < count;) {
    const std::int64_t position = (first + row) % length;
    const std::int64_t left = count - row;
    if (position == 0 && left >= length) {
      body(row, left / length, std::int64_t{0}, length);
      row += left / length * length;
    } else {
      const std::int64_t tokens = left < length - position ? left : length - position;
      body(row, std::int64_t{1}, position, tokens);
      row += tokens;
    }
  }
}

}  // namespace droptest::models
