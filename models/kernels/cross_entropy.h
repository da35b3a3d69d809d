// SPDX-License-Identifier: Apache-2.0
// The parts of cross-entropy that a rank computes on its part of the vocabulary. The caller makes the reductions
// between them (models/gpt2/linear_head.h).
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/gradient_mode.h"
#include "models/kernels/embedding.h"
#include "models/team.h"

namespace droptest::models {

/// The target of a row without loss and gradient. Source: the default ignore_index of PyTorch's losses.
inline constexpr std::int32_t kIgnoredTarget = -100;

/// A chunk of rows of logits, of which this rank has the columns of `range`; the rest of a row is padding.
/// Targets are tokens of the vocabulary or kIgnoredTarget.
struct LogitBlock {
  comm::Tensor logits;  ///< [rows, stride]
  std::int64_t rows = 0;
  std::int64_t stride = 0;
  TokenRange range;
  TokenIds targets;                       ///< [rows]
  comm::Tensor largest, sums, predicted;  ///< [rows], of the type of statistics
  comm::Tensor losses;                    ///< [rows], in nats
  float factor = 1;  ///< factor of the gradient of the logits, applied before the gradient is rounded to their type
};

/// kKeep: logits stay. kToGradient: they become `factor` times the gradient of each row's loss with respect to its
/// logits.
enum class Logits : std::uint8_t { kKeep, kToGradient };

// The host versions: T is float or double, logits and statistics are T, losses are double, and rows have no padding.

/// largest = the largest logit of each row; minus infinity for a rank without tokens.
template <class T>
void row_maxima(const LogitBlock& block, const Team& team);

/// Let l = logit - largest[row]. Each logit becomes exp(l), sums[row] their sum, and predicted[row] the l of the
/// target, or 0 if another rank has the target.
template <class T>
void exponential_sums(const LogitBlock& block, const Team& team);

/// losses[row] = log(sums[row]) - predicted[row]; 0 if the target is kIgnoredTarget.
template <class T>
void losses_of_sums(const LogitBlock& block);

/// Replaces the exponentials by the gradient of the row's loss with respect to its logits: (exponential / sums[row],
/// minus 1 at the target) x `factor`; zeros if the target is kIgnoredTarget.
template <class T>
void logits_to_gradient(const LogitBlock& block, const Team& team);

/// Multiplies the loss and the gradient of each row by the weight of its target, after logits_to_gradient(). Shapes:
/// one weight for each possible target.
template <class T>
void weigh_rows(const LogitBlock& block, std::span<const double> weights, const Team& team);

// The device versions: E is float, Bf16 or Fp16, statistics and losses are float. Unlike on the host, the logits stay
// until the gradient replaces them. The gradient of padding is zero.

template <class E>
void row_maxima(const LogitBlock& block, comm::Stream& stream);
template <class E>
void exponential_sums(const LogitBlock& block, comm::Stream& stream);
void losses_of_sums(const LogitBlock& block, comm::Stream& stream);
template <class E>
void logits_to_gradient(const LogitBlock& block, comm::Stream& stream);
/// Shapes: one weight for each possible target.
template <class E>
void weigh_rows(const LogitBlock& block, comm::DeviceSpan<const float> weights, comm::Stream& stream);
/// All of the above except weigh_rows() in one pass, for a rank that has the whole vocabulary. largest, sums and
/// predicted may be empty.
template <class E>
void cross_entropy(const LogitBlock& block, Logits logits, comm::Stream& stream);

/// Sets sum[0], or adds to it with kAdd: the sum of the values divided by `divisor`, in double. Shapes: sum [1].
/// Determinism: the order depends only on the number of values.
void sum_of_values(comm::DeviceSpan<const float> values, double divisor, GradientMode mode,
                   comm::DeviceSpan<double> sum, comm::Stream& stream);

}  // namespace droptest::models
