// SPDX-License-Identifier: Apache-2.0
// The tokens of a micro-batch, cut over tensor-parallel ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace droptest::models {

/// The rows of a micro-batch that a tensor-parallel rank has between the layers that ranks share. Whole: all rows. Cut:
/// consecutive rows, as many on each rank as comm::even_counts() says; a rank may have none. Source: Korthikanti et al.
/// 2022, section 4.2.2.
struct TokenCut {
  std::int64_t rows = 0;                ///< of the micro-batch
  std::vector<std::uint64_t> counts{};  ///< rows of each rank; empty: each rank has all
  int rank = 0;

  static TokenCut whole(std::int64_t rows) { return {rows, {}, 0}; }
  static TokenCut even(std::int64_t rows, int ranks, int rank);

  bool is_cut() const { return !counts.empty(); }
  /// Of this rank.
  std::int64_t own_rows() const;
  std::int64_t first_row() const;
  /// Elements of each rank's rows of that width.
  std::vector<std::uint64_t> elems(std::int64_t width) const;
};

/// Calls body(row, sequences, position, tokens) for parts of the rows first, ..., first + count - 1 of [batch, length]:
/// whole sequences, or one part of a sequence. `row` counts from `first`.
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
