// SPDX-License-Identifier: Apache-2.0
// Sums of squares, for norms.
#pragma once

#include <span>

#include "models/team.h"

namespace droptest::models {

/// sums[c] = the sum of the squares of chunk c, in double. Chunks have kNormChunkElems elements; the last one may have
/// fewer. Determinism: depends only on the elements of the chunk.
template <class T>
void squares_of_chunks(std::span<const T> values, std::span<double> sums, const Team& team);

}  // namespace droptest::models
