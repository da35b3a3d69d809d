// SPDX-License-Identifier: Apache-2.0
// The arguments of the device's attention kernels, and their launches in plain arithmetic and on tensor cores.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "comm/device/stream.h"
#include "models/kernels/attention.h"

namespace droptest::models {

/// The arguments of attention_forward(). D is float, __nv_bfloat16 or __half.
template <class D>
struct AttentionForward {
  AttentionShape shape;
  const D* qkv;
  float* log_sum_exp;
  D* output;
};

/// The arguments of attention_backward(). delta [B, NH, T] is the sum over d of grad_output x output.
template <class D>
struct AttentionBackward {
  AttentionShape shape;
  const D* grad_output;
  const D* qkv;
  const float* log_sum_exp;
  const float* delta;
  D* grad_qkv;
};

/// The place of one head of one sequence in the tensors, in elements.
struct HeadPlace {
  std::int64_t packed;         ///< offset of its first query in qkv
  std::int64_t packed_stride;  ///< distance between successive rows of qkv
  std::int64_t part;           ///< distance from a query to the key of the same row, and from that key to its value
  std::int64_t output;         ///< offset of its first row in the output
  std::int64_t output_stride;  ///< distance between successive rows of the output
  std::int64_t statistics;     ///< offset of its first row in log_sum_exp and delta [B, NH, T]
};

__device__ inline HeadPlace head_place(const AttentionShape& shape, std::int64_t head_of_all) {
  const std::int64_t part = shape.heads * shape.head_width;
  const std::int64_t first_row = head_of_all / shape.heads * shape.length;
  const std::int64_t column = head_of_all % shape.heads * shape.head_width;
  return {first_row * 3 * part + column, 3 * part, part, first_row * part + column, part, head_of_all * shape.length};
}

/// The kernels in plain float arithmetic, for any element type and width.
template <class D>
void launch_plain_attention_forward(const AttentionForward<D>& work, const DropoutMask& dropout, comm::Stream& stream);
template <class D>
void launch_plain_attention_backward(const AttentionBackward<D>& work, const DropoutMask& dropout,
                                     comm::Stream& stream);

/// The kernels on tensor cores; tensor_cores_take_width() must be true for head_width.
bool tensor_cores_take_width(std::int64_t head_width);
void launch_tensor_core_attention_forward(const AttentionForward<__nv_bfloat16>& work, comm::Stream& stream);
void launch_tensor_core_attention_backward(const AttentionBackward<__nv_bfloat16>& work, comm::Stream& stream);

}  // namespace droptest::models
