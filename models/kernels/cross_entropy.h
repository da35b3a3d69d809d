// SPDX-License-Identifier: Apache-2.0
// The pieces of cross-entropy that a rank computes on its part of the vocabulary; the reductions between them are the
// caller's (models/gpt2/parallel_cross_entropy.h).
#pragma once

#include <cstdint>
#include <span>

#include "models/kernels/embedding.h"
#include "models/team.h"

namespace droptest::models {

/// largest[i] = the largest logit of row i; minus infinity for a rank without tokens.
/// Shapes: logits [rows, columns], largest [rows].
template <class T>
void row_maxima(std::span<const T> logits, std::int64_t columns, std::span<T> largest, const Team& team);

/// With l = logit - largest[row]: each logit becomes exp(l), sums[row] their sum, and predicted[row] the target's l, or
/// 0 where the target is another rank's. Shapes: logits [rows, range.count]; targets, largest, sums, predicted [rows].
template <class T>
void exponentials(std::span<T> logits, TokenRange range, std::span<const std::int32_t> targets,
                  std::span<const T> largest, std::span<T> sums, std::span<T> predicted, const Team& team);

/// exponentials / sums[row], less 1 at the target: the gradient of a row's loss by its logits, in place.
template <class T>
void exponentials_to_gradient(std::span<T> exponentials, TokenRange range, std::span<const std::int32_t> targets,
                              std::span<const T> sums, const Team& team);

}  // namespace droptest::models
