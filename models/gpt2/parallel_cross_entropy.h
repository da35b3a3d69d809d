// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over logits whose columns are cut over ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/gpt2/execution.h"
#include "models/kernels/embedding.h"

namespace droptest::models {

/// loss = log(sum of exp) - target's logit, both relative to the row's largest logit. Source: Megatron-LM's
/// vocabulary-parallel cross-entropy; the three reductions are small and travel as `control`. Rows come in chunks, so
/// that the logits of all rows are never in memory at once.
template <class T>
class ParallelCrossEntropy {
 public:
  /// `range`: the true tokens that this rank's columns stand for; padding has no column.
  ParallelCrossEntropy(TokenRange range, const Execution& execution);

  /// Makes room for what is kept of each of `rows` rows.
  void start(std::size_t rows);
  /// Sum of the losses in nats of rows first_row, first_row + 1, ...; the same on every rank. Overwrites the logits
  /// with what backward needs. Ranks: all; all_reduce of [rows] maxima, sums and targets' logits.
  /// Shapes: logits [rows, range.count].
  double forward_rows(std::size_t first_row, std::span<T> logits, std::span<const std::int32_t> targets);
  /// Turns freshly computed logits of rows whose forward_rows() has been into what that had left. No communication.
  void repeat_rows(std::size_t first_row, std::span<T> logits, std::span<const std::int32_t> targets);
  /// Turns what forward_rows or repeat_rows left into the gradient of the sum of the rows' losses by the logits. Call
  /// once.
  void to_gradient_rows(std::size_t first_row, std::span<T> logits, std::span<const std::int32_t> targets) const;

 private:
  TokenRange range_;
  const Execution& execution_;
  std::vector<T> largest_;
  std::vector<T> sums_;
  std::vector<T> predicted_;
  std::vector<T> own_sums_;
  std::vector<T> own_predicted_;
};

}  // namespace droptest::models
