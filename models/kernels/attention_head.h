// SPDX-License-Identifier: Apache-2.0
// The place of one head of one sequence in the tensors of attention.h.
#pragma once

#include <cstdint>
#include <span>

#include "models/kernels/attention.h"

namespace droptest::models {

/// The place of one head of one sequence. Offsets are in elements.
template <class T>
struct AttentionHead {
  std::int64_t qkv_stride;     ///< elements between successive rows of q, k or v
  std::int64_t output_stride;  ///< elements between successive rows of the output
  const T* q;
  const T* k;
  const T* v;
  std::int64_t qkv_offset;     ///< offset of q in qkv
  std::int64_t output_offset;  ///< offset of the head's first row in the output
};

/// The head number `index` of qkv; `index` is sequence x NH + head, 0 to B x NH - 1.
template <class T>
AttentionHead<T> attention_head(std::span<const T> qkv, const AttentionShape& shape, std::int64_t index) {
  const std::int64_t part = shape.heads * shape.head_width;
  const std::int64_t first_row = index / shape.heads * shape.length;
  const std::int64_t column = index % shape.heads * shape.head_width;
  const T* q = qkv.data() + first_row * 3 * part + column;
  return {3 * part, part, q, q + part, q + 2 * part, first_row * 3 * part + column, first_row * part + column};
}

/// The dropout of the keys that query `t` of head number `index` sees. The column of the key in row u is
/// mask.first_position + u.
inline DropoutRow dropout_of_query(const DropoutMask& mask, const AttentionShape& shape, std::int64_t index,
                                   std::int64_t t) {
  return {mask, mask.first_sample + index / shape.heads, mask.first_head + index % shape.heads,
          mask.first_position + t};
}

}  // namespace droptest::models
