// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "models/kernels/chunks.h"
#include "models/kernels/lanes.h"
#include "models/kernels/squares.h"
#include "models/parameter.h"

namespace droptest::models {

template <class T>
void squares_of_chunks(std::span<const T> values, std::span<double> sums, const Team& team) {
  constexpr auto kChunk = static_cast<std::int64_t>(kNormChunkElems);
  for_vector_chunks(static_cast<std::int64_t>(values.size()), kChunk, team, [&](std::int64_t begin, std::int64_t end) {
    const T* v = values.data() + begin;
    sums[static_cast<std::size_t>(begin / kChunk)] = lane_sum<double>(
        end - begin, [v](std::int64_t i) { return static_cast<double>(v[i]) * static_cast<double>(v[i]); });
  });
}

template void squares_of_chunks<float>(std::span<const float>, std::span<double>, const Team&);
template void squares_of_chunks<double>(std::span<const double>, std::span<double>, const Team&);

}  // namespace droptest::models
