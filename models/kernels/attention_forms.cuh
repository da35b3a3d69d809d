// SPDX-License-Identifier: Apache-2.0
// The forms of the device's attention kernels: their arguments, and the tiles of a block.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "comm/device/stream.h"
#include "models/kernels/attention.h"

namespace droptest::models {

/// Of attention_forward. D: float, __nv_bfloat16 or __half.
template <class D>
struct AttentionForward {
  AttentionShape shape;
  const D* qkv;
  float* log_sum_exp;
  D* output;
};

/// Of attention_backward; delta [B, NH, T] is the sum over d of grad_output x output.
template <class D>
struct AttentionBackward {
  AttentionShape shape;
  const D* grad_output;
  const D* qkv;
  const float* log_sum_exp;
  const float* delta;
  D* grad_qkv;
};

/// Where one head of one sequence lies: offsets of its first row and elements from one row to the next, in packed rows
/// (queries; keys and values follow at `part` and 2 x `part`), in rows of the output, and in [B, NH, T].
struct HeadPlace {
  std::int64_t packed;
  std::int64_t packed_stride;
  std::int64_t part;
  std::int64_t output;
  std::int64_t output_stride;
  std::int64_t statistics;
};

__device__ inline HeadPlace head_place(const AttentionShape& shape, std::int64_t head_of_all) {
  const std::int64_t part = shape.heads * shape.head_width;
  const std::int64_t first_row = head_of_all / shape.heads * shape.length;
  const std::int64_t column = head_of_all % shape.heads * shape.head_width;
  return {first_row * 3 * part + column, 3 * part, part, first_row * part + column, part, head_of_all * shape.length};
}

/// Plain arithmetic in float, for any element type and width.
template <class D>
void launch_plain_attention_forward(const AttentionForward<D>& work, const DropoutMask& dropout, comm::Stream& stream);
template <class D>
void launch_plain_attention_backward(const AttentionBackward<D>& work, const DropoutMask& dropout,
                                     comm::Stream& stream);

/// Tensor cores. tensor_cores_take_width() must be true of head_width.
bool tensor_cores_take_width(std::int64_t head_width);
void launch_tensor_core_attention_forward(const AttentionForward<__nv_bfloat16>& work, comm::Stream& stream);
void launch_tensor_core_attention_backward(const AttentionBackward<__nv_bfloat16>& work, comm::Stream& stream);

}  // namespace droptest::models
