// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/token_cut.h"

#include <numeric>

#include "comm/communicator.h"

namespace droptest::models {

TokenCut TokenCut::even(std::int64_t rows, int ranks, int rank) {
  return {rows, comm::even_counts(static_cast<std::uint64_t>(rows), ranks), rank};
}

std::int64_t TokenCut::own_rows() const {
  return is_cut() ? static_cast<std::int64_t>(counts[static_cast<std::size_t>(rank)]) : rows;
}

std::int64_t TokenCut::first_row() const {
  if (!is_cut()) return 0;
  return static_cast<std::int64_t>(std::accumulate(counts.begin(), counts.begin() + rank, std::uint64_t{0}));
}

std::vector<std::uint64_t> TokenCut::elems(std::int64_t width) const {
  std::vector<std::uint64_t> elems = counts;
  for (std::uint64_t& count : elems) count *= static_cast<std::uint64_t>(width);
  return elems;
}

}  // namespace droptest::models
