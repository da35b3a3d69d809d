// SPDX-License-Identifier: Apache-2.0
// Causal self-attention over the heads that one rank has.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/kernels/dropout.h"
#include "models/team.h"

namespace droptest::models {

/// B = batch, T = length, NH = heads of this rank, D = head_width. qkv is [B, T, 3, NH, D]: a row has the queries of
/// all heads, then the keys, then the values. The output is [B, T, NH, D].
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t heads = 0;
  std::int64_t head_width = 0;
};

/// The factor of a score, before masks: 1 / sqrt(D).
inline double score_scale(std::int64_t head_width) { return 1.0 / std::sqrt(static_cast<double>(head_width)); }

/// The number of elements of `row_statistics`: 2 x B x NH x T.
std::uint64_t attention_statistics_elems(const AttentionShape& shape);
/// The number of elements of `scratch`, forward and backward: 128 rows of T scores for each thread.
std::uint64_t attention_scratch_elems(const AttentionShape& shape, int threads);

/// output = softmax(mask(Q K' / sqrt(D))) V for each sequence and head. row_statistics [B, NH, T, 2] saves each row's
/// largest score and the inverse of its sum of exponentials; the backward pass recomputes the probabilities from them.
/// Dropout acts on the probabilities after the softmax; the columns of its mask are positions of keys. Shapes: see
/// AttentionShape. Call it under SingleThreadedLibraries (models/kernels/chunks.h).
template <class T>
void attention_forward(std::span<const T> qkv, const AttentionShape& shape, std::span<T> row_statistics,
                       std::span<T> output, std::span<T> scratch, const Team& team, const DropoutMask& dropout = {});

/// Sets grad_qkv to the gradient of qkv. Shapes: as in attention_forward().
template <class T>
void attention_backward(std::span<const T> grad_output, std::span<const T> qkv, std::span<const T> row_statistics,
                        const AttentionShape& shape, std::span<T> grad_qkv, std::span<T> scratch, const Team& team,
                        const DropoutMask& dropout = {});

// The device versions: E is float, Bf16 or Fp16, D is 1 to 256. Scores never leave the registers and the shared memory
// of a block, and no tensor is permuted. Tensor cores are used for bfloat16 with D = 64 or 128 if dropout is off and
// the tensors of type E begin at multiples of 16 bytes. All sums are float; their order depends only on the shape and
// on the use of tensor cores. Throws: CheckError for D out of range or a tensor that is too small.

/// Sets log_sum_exp [B, NH, T] to the log-sum-exp of the scaled scores of each row.
template <class E>
void attention_forward(comm::DeviceSpan<const E> qkv, const AttentionShape& shape, comm::DeviceSpan<float> log_sum_exp,
                       comm::DeviceSpan<E> output, comm::Stream& stream, const DropoutMask& dropout = {});

/// Sets grad_qkv to the gradient of qkv. `output` is the result of the forward pass. Overwrites scratch [B, NH, T].
template <class E>
void attention_backward(comm::DeviceSpan<const E> grad_output, comm::DeviceSpan<const E> qkv,
                        comm::DeviceSpan<const E> output, comm::DeviceSpan<const float> log_sum_exp,
                        const AttentionShape& shape, comm::DeviceSpan<E> grad_qkv, comm::DeviceSpan<float> scratch,
                        comm::Stream& stream, const DropoutMask& dropout = {});

}  // namespace droptest::models
