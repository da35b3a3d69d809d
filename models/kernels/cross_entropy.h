// SPDX-License-Identifier: Apache-2.0
// The pieces of cross-entropy that a rank computes on its part of the vocabulary; the reductions between them are the
// caller's (models/gpt2/parallel_cross_entropy.h).
#pragma once

#include <cstdint>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/gradient_mode.h"
#include "models/kernels/embedding.h"
#include "models/team.h"

namespace droptest::models {

/// A target that is none: its row's loss and gradient are zero. Source: the default ignore_index of PyTorch's losses.
inline constexpr std::int32_t kIgnoredTarget = -100;

/// largest[i] = the largest logit of row i; minus infinity for a rank without tokens.
/// Shapes: logits [rows, columns], largest [rows].
template <class T>
void row_maxima(std::span<const T> logits, std::int64_t columns, std::span<T> largest, const Team& team);

/// With l = logit - largest[row]: each logit becomes exp(l), sums[row] their sum, and predicted[row] the target's l, or
/// 0 where the target is another rank's. Shapes: logits [rows, range.count]; targets, largest, sums, predicted [rows].
template <class T>
void exponentials(std::span<T> logits, TokenRange range, std::span<const std::int32_t> targets,
                  std::span<const T> largest, std::span<T> sums, std::span<T> predicted, const Team& team);

/// exponentials / sums[row], less 1 at the target: the gradient of a row's loss by its logits, in place; zeros where
/// the target is kIgnoredTarget.
template <class T>
void exponentials_to_gradient(std::span<T> exponentials, TokenRange range, std::span<const std::int32_t> targets,
                              std::span<const T> sums, const Team& team);

// On a device, for E float or Bf16. The logits stay as they are until the gradient takes their place. A row of logits
// is `stride` elements long, of which the first range.count stand for tokens; the rest is padding that nothing reads
// and the gradient sets to zero. All that is kept of a row is float. Targets must be tokens of the vocabulary or
// kIgnoredTarget.

/// A matrix of logits [rows, stride], or of their gradients.
struct LogitRows {
  std::int64_t rows = 0;
  std::int64_t stride = 0;  ///< at least range.count
  TokenRange range;
};

template <class E>
void row_maxima(comm::DeviceSpan<const E> logits, const LogitRows& shape, comm::DeviceSpan<float> largest,
                comm::Stream& stream);

/// With l = logit - largest[row]: sums[row] = the sum of exp(l), predicted[row] = the target's l, or 0 where the target
/// is another rank's. Shapes: targets, largest, sums, predicted [rows].
template <class E>
void exponential_sums(comm::DeviceSpan<const E> logits, const LogitRows& shape,
                      comm::DeviceSpan<const std::int32_t> targets, comm::DeviceSpan<const float> largest,
                      comm::DeviceSpan<float> sums, comm::DeviceSpan<float> predicted, comm::Stream& stream);

/// Each logit becomes factor x (exp(l) / sums[row] - [it is the target's]); padding becomes 0.
template <class E>
void logits_to_gradient(comm::DeviceSpan<E> logits, const LogitRows& shape,
                        comm::DeviceSpan<const std::int32_t> targets, comm::DeviceSpan<const float> largest,
                        comm::DeviceSpan<const float> sums, float factor, comm::Stream& stream);

/// losses[row] = log(sums[row]) - predicted[row], in nats; 0 where the target is kIgnoredTarget. Shapes: all [rows].
void losses_of_sums(comm::DeviceSpan<const float> sums, comm::DeviceSpan<const float> predicted,
                    comm::DeviceSpan<const std::int32_t> targets, comm::DeviceSpan<float> losses, comm::Stream& stream);

/// For a rank that has the whole vocabulary, all of the above in one pass: losses, and no gradient.
template <class E>
void cross_entropy_forward(comm::DeviceSpan<const E> logits, const LogitRows& shape,
                           comm::DeviceSpan<const std::int32_t> targets, comm::DeviceSpan<float> losses,
                           comm::Stream& stream);

/// The same, and the logits become factor x the gradient of the row's loss, as logits_to_gradient does it.
template <class E>
void cross_entropy_forward_backward(comm::DeviceSpan<E> logits, const LogitRows& shape,
                                    comm::DeviceSpan<const std::int32_t> targets, float factor,
                                    comm::DeviceSpan<float> losses, comm::Stream& stream);

/// sum[0] = the sum of the values by `divisor`, in double, or += with kAdd. Shapes: sum [1].
/// Determinism: the order depends on the count alone.
void sum_of_values(comm::DeviceSpan<const float> values, double divisor, GradientMode mode,
                   comm::DeviceSpan<double> sum, comm::Stream& stream);

}  // namespace droptest::models
