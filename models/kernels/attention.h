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

/// B = batch, T = length, NH = heads here, D = head_width. A row of qkv holds the queries of all heads, then the keys,
/// then the values: [B, T, 3, NH, D]; a row of the output [B, T, NH, D].
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t heads = 0;
  std::int64_t head_width = 0;
};

/// The factor of a score, before masks: 1 / sqrt(D).
inline double score_scale(std::int64_t head_width) { return 1.0 / std::sqrt(static_cast<double>(head_width)); }

/// Elements of `row_statistics`: 2 x B x NH x T.
std::uint64_t attention_statistics_elems(const AttentionShape& shape);
/// Elements of `scratch`, forward and backward: a few rows of scores for each thread, never T x T.
std::uint64_t attention_scratch_elems(const AttentionShape& shape, int threads);

/// output = softmax(mask(Q K' / sqrt(D))) V per sequence and head. Shapes: see AttentionShape; row_statistics
/// [B, NH, T, 2] saves each row's largest score and the inverse of its sum of exponentials, from which backward
/// computes the probabilities again. Dropout, where it is on, sets probabilities to zero after the softmax; its columns
/// are positions of keys. Call under SingleThreadedLibraries.
template <class T>
void attention_forward(std::span<const T> qkv, const AttentionShape& shape, std::span<T> row_statistics,
                       std::span<T> output, std::span<T> scratch, const Team& team, const DropoutMask& dropout = {});

/// grad_qkv = the gradient of qkv. Shapes: as forward.
template <class T>
void attention_backward(std::span<const T> grad_output, std::span<const T> qkv, std::span<const T> row_statistics,
                        const AttentionShape& shape, std::span<T> grad_qkv, std::span<T> scratch, const Team& team,
                        const DropoutMask& dropout = {});

// On a device, for E float, Bf16 or Fp16, D from 1 to 256. Scores are never in memory; nothing is permuted. bfloat16
// with D of 64 or 128 runs on the tensor cores. All sums are float and in an order that depends on the shape alone.

/// log_sum_exp [B, NH, T] is the log-sum-exp of the scaled scores of each row. Where dropout is on, no tensor core is
/// used.
template <class E>
void attention_forward(comm::DeviceSpan<const E> qkv, const AttentionShape& shape, comm::DeviceSpan<float> log_sum_exp,
                       comm::DeviceSpan<E> output, comm::Stream& stream, const DropoutMask& dropout = {});

/// grad_qkv = the gradient of qkv. `output` is forward's; scratch [B, NH, T] is overwritten.
template <class E>
void attention_backward(comm::DeviceSpan<const E> grad_output, comm::DeviceSpan<const E> qkv,
                        comm::DeviceSpan<const E> output, comm::DeviceSpan<const float> log_sum_exp,
                        const AttentionShape& shape, comm::DeviceSpan<E> grad_qkv, comm::DeviceSpan<float> scratch,
                        comm::Stream& stream, const DropoutMask& dropout = {});

}  // namespace droptest::models
