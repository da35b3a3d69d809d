// SPDX-License-Identifier: Apache-2.0
// The end of the model: logits by the tied embedding, cross-entropy, and the gradients of both.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/gpt2/execution.h"
#include "models/gpt2/parallel_cross_entropy.h"
#include "models/gpt2/weight_products.h"
#include "models/kernels/embedding.h"
#include "models/parameter.h"

namespace droptest::models {

/// Works through the rows in chunks, so that no more than kMaxLogits logits are in memory, however long the batch is.
/// How rows are cut depends on shapes that all ranks know: the ranks' reductions match.
template <class T>
class LmHead {
 public:
  /// One chunk of GPT-2's vocabulary has 333 rows: the product for the embedding's gradient, which reads and writes the
  /// whole embedding for each chunk, is still bound by arithmetic.
  static constexpr std::int64_t kMaxLogits = std::int64_t{1} << 24;

  /// `wte`: [at least range.count, width]. `range`: the true tokens of this rank; `largest_part`: of any rank.
  LmHead(Parameter<T>& wte, TokenRange range, std::int64_t largest_part, const Execution& execution,
         std::int64_t max_logits = kMaxLogits);

  /// Elements of the logits in memory at once, of a batch of so many rows, on a rank with so many columns.
  static std::uint64_t logits_elems(std::int64_t rows, std::int64_t largest_part, std::int64_t columns);

  /// Mean loss in nats over all rows; the same on every rank. Ranks: all; three all_reduces of `control` per chunk.
  /// Shapes: normalized [rows, width], targets [rows].
  double forward(std::span<const T> normalized, std::span<const std::int32_t> targets);

  /// For the arguments of the last forward: adds scale x d(loss)/d(wte), or sets it, as the gradient mode says, and
  /// sets grad_normalized to scale x d(loss)/d(normalized). Computes the logits again unless all rows are one chunk.
  /// Ranks: all; one all_reduce of grad_normalized.
  void backward(std::span<const T> normalized, std::span<const std::int32_t> targets, double scale,
                std::span<T> grad_normalized);

  /// forward and backward in one go, which computes each logit once.
  double forward_backward(std::span<const T> normalized, std::span<const std::int32_t> targets, double scale,
                          std::span<T> grad_normalized);

 private:
  enum class Hold : std::uint8_t { kNothing, kExponentials, kGradient };
  struct Chunk {
    std::int64_t first_row;
    std::int64_t rows;
  };

  static std::int64_t most_rows(std::int64_t largest_part, std::int64_t max_logits);
  static std::int64_t rows_per_chunk(std::int64_t rows, std::int64_t most_rows);
  template <class Body>
  void for_each_chunk(std::int64_t rows, const Body& body) const;
  void compute_logits(std::span<const T> normalized, Chunk chunk);
  double chunk_forward(std::span<const T> normalized, std::span<const std::int32_t> targets, Chunk chunk);
  void chunk_backward(std::span<const T> normalized, std::span<const std::int32_t> targets, Chunk chunk, T factor,
                      std::span<T> grad_normalized);
  std::span<T> logits(Chunk chunk);
  LinearShape shape_of(Chunk chunk) const;

  Parameter<T>& wte_;
  std::int64_t columns_;
  std::int64_t width_;
  std::int64_t most_rows_;  ///< of a chunk
  const Execution& execution_;
  ParallelCrossEntropy<T> cross_entropy_;
  std::vector<T> logits_;
  Hold hold_ = Hold::kNothing;       ///< what logits_ contains,
  std::int64_t held_first_row_ = 0;  ///< and of which chunk
};

}  // namespace droptest::models
