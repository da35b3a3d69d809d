// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>
#include <numeric>

#include "models/kernels/chunks.h"
#include "models/kernels/lanes.h"
#include "models/kernels/squares.h"

namespace droptest::models {

template <class T>
double sum_of_squares(std::span<const T> values, const Team& team) {
  constexpr std::int64_t kMostChunks = 64;
  const auto count = static_cast<std::int64_t>(values.size());
  const std::int64_t chunk = chunk_items(count, 16384, kMostChunks);
  std::array<double, kMostChunks> sums{};
  for_vector_chunks(count, chunk, team, [&](std::int64_t begin, std::int64_t end) {
    const T* v = values.data() + begin;
    sums[static_cast<std::size_t>(begin / chunk)] = lane_sum<double>(
        end - begin, [v](std::int64_t i) { return static_cast<double>(v[i]) * static_cast<double>(v[i]); });
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

template double sum_of_squares<float>(std::span<const float>, const Team&);
template double sum_of_squares<double>(std::span<const double>, const Team&);

}  // namespace droptest::models
