// SPDX-License-Identifier: Apache-2.0
// Causal self-attention over the heads that one rank has.
#pragma once

#include <cstdint>
#include <span>

namespace droptest::models {

/// B = batch, T = length, NH = heads here, D = head_width. A row of qkv holds the queries of all heads, then the keys,
/// then the values: [B, T, 3, NH, D]; a row of the output [B, T, NH, D].
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t heads = 0;
  std::int64_t head_width = 0;
};

/// Elements of `probabilities`: B x NH x T x T.
std::uint64_t attention_probability_elems(const AttentionShape& shape);
/// Elements of `scratch` that attention_backward needs.
std::uint64_t attention_scratch_elems(const AttentionShape& shape, int threads);

/// output = softmax(mask(Q K' / sqrt(D))) V per sequence and head. Shapes: see AttentionShape; probabilities
/// [B, NH, T, T] keep the softmax for backward (where a key lies in the future: 0 or not written).
/// Call under SingleThreadedLibraries.
template <class T>
void attention_forward(std::span<const T> qkv, const AttentionShape& shape, std::span<T> probabilities,
                       std::span<T> output, int threads);

/// grad_qkv = the gradient of qkv. Shapes: as forward.
template <class T>
void attention_backward(std::span<const T> grad_output, std::span<const T> qkv, std::span<const T> probabilities,
                        const AttentionShape& shape, std::span<T> grad_qkv, std::span<T> scratch, int threads);

}  // namespace droptest::models
