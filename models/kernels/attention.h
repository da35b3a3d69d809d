// SPDX-License-Identifier: Apache-2.0
// Causal self-attention over the heads that one rank has.
#pragma once

#include <cstdint>
#include <span>

#include "models/team.h"

namespace droptest::models {

/// B = batch, T = length, NH = heads here, D = head_width. A row of qkv holds the queries of all heads, then the keys,
/// then the values: [B, T, 3, NH, D]; a row of the output [B, T, NH, D].
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t heads = 0;
  std::int64_t head_width = 0;
};

/// Elements of `row_statistics`: 2 x B x NH x T.
std::uint64_t attention_statistics_elems(const AttentionShape& shape);
/// Elements of `scratch`, forward and backward: a few rows of scores for each thread, never T x T.
std::uint64_t attention_scratch_elems(const AttentionShape& shape, int threads);

/// output = softmax(mask(Q K' / sqrt(D))) V per sequence and head. Shapes: see AttentionShape; row_statistics
/// [B, NH, T, 2] keeps each row's largest score and the inverse of its sum of exponentials, from which backward
/// computes the probabilities again. Call under SingleThreadedLibraries.
template <class T>
void attention_forward(std::span<const T> qkv, const AttentionShape& shape, std::span<T> row_statistics,
                       std::span<T> output, std::span<T> scratch, const Team& team);

/// grad_qkv = the gradient of qkv. Shapes: as forward.
template <class T>
void attention_backward(std::span<const T> grad_output, std::span<const T> qkv, std::span<const T> row_statistics,
                        const AttentionShape& shape, std::span<T> grad_qkv, std::span<T> scratch, const Team& team);

}  // namespace droptest::models
