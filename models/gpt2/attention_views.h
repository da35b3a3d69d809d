// SPDX-License-Identifier: Apache-2.0
// Views of a block's tensors as the attention of models/sequence/ takes them.
#pragma once

#include <cstdint>
#include <span>

#include "models/gpt2/sequence_cut.h"
#include "models/kernels/attention.h"
#include "models/sequence/attention_mask.h"
#include "models/sequence/head_view.h"

namespace droptest::models {

/// The whole of [rows, heads, head width].
inline HeadShape head_shape(const AttentionShape& s) { return {s.batch, s.length, s.heads, s.head_width}; }

/// Queries (0), keys (1) or values (2) of [rows, 3, heads, head width]; without rows there is no data.
template <class T>
HeadView<T> part_of_qkv(std::span<T> elems, std::int64_t part, const AttentionShape& s) {
  const std::int64_t row = s.heads * s.head_width;
  T* const begin = elems.empty() ? nullptr : elems.data() + part * row;
  return {begin, head_shape(s), s.length * 3 * row, 3 * row, s.head_width};
}

/// Of [rows, heads, head width].
template <class T>
HeadView<T> tokens_of(std::span<T> elems, const AttentionShape& s) {
  return view_of("attention", elems, head_shape(s), TokenLayout::kBatchFirst);
}

/// Causal, and within documents where the sequences have some. Borrows them.
inline AttentionMask mask_of(const Sequences& sequences, std::int64_t batch) {
  if (sequences.documents.empty()) return AttentionMask(Causality::kCausal);
  const std::int64_t length = sequences.parts->length();
  return {Causality::kCausal, {batch, length, length}, {}, sequences.documents};
}

}  // namespace droptest::models
