// SPDX-License-Identifier: Apache-2.0
// The pieces of cross-entropy that a rank computes on its part of the vocabulary; the reductions between them are the
// caller's (models/gpt2/linear_head.h).
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

/// A target that is none: its row's loss and gradient are zero. Source: the default ignore_index of PyTorch's losses.
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
  float factor = 1;                       ///< of the gradient by the logits, before it is rounded to their type
};

/// Logits stay, or become `factor` times the gradient of each row's loss by its logits.
enum class Logits : std::uint8_t { kKeep, kToGradient };

// On the host, for T float or double: logits and statistics are T, losses double, and rows have no padding.

/// largest = the largest logit of each row; minus infinity for a rank without tokens.
template <class T>
void row_maxima(const LogitBlock& block, const Team& team);

/// With l = logit - largest[row]: each logit becomes exp(l), sums[row] their sum, and predicted[row] the target's l, or
/// 0 where the target is another rank's.
template <class T>
void exponential_sums(const LogitBlock& block, const Team& team);

/// losses[row] = log(sums[row]) - predicted[row]; 0 where the target is kIgnoredTarget.
template <class T>
void losses_of_sums(const LogitBlock& block);

/// exponentials / sums[row], less 1 at the target, times `factor`: the gradient of a row's loss by its logits, in
/// place; zeros where the target is kIgnoredTarget.
template <class T>
void logits_to_gradient(const LogitBlock& block, const Team& team);

/// After logits_to_gradient(): the loss and the gradient of each row times the weight of its target. Shapes: a weight
/// of each target that there is.
template <class T>
void weigh_rows(const LogitBlock& block, std::span<const double> weights, const Team& team);

// On a device, for E float, Bf16 or Fp16: statistics and losses are float. The same, but the logits stay as they are
// until the gradient takes their place, and that of padding is zero.

template <class E>
void row_maxima(const LogitBlock& block, comm::Stream& stream);
template <class E>
void exponential_sums(const LogitBlock& block, comm::Stream& stream);
void losses_of_sums(const LogitBlock& block, comm::Stream& stream);
template <class E>
void logits_to_gradient(const LogitBlock& block, comm::Stream& stream);
/// Shapes: weights [of each target that there is].
template <class E>
void weigh_rows(const LogitBlock& block, comm::DeviceSpan<const float> weights, comm::Stream& stream);
/// For a rank that has the whole vocabulary, all of the above but the weights in one pass; largest, sums and predicted
/// may be empty.
template <class E>
void cross_entropy(const LogitBlock& block, Logits logits, comm::Stream& stream);

/// sum[0] = the sum of the values by `divisor`, in double, or += with kAdd. Shapes: sum [1].
/// Determinism: the order depends on the count alone.
void sum_of_values(comm::DeviceSpan<const float> values, double divisor, GradientMode mode,
                   comm::DeviceSpan<double> sum, comm::Stream& stream);

}  // namespace droptest::models
