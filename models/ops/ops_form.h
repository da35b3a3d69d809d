// SPDX-License-Identifier: Apache-2.0
// The types and sizes of an implementation of the operations: saved activations and working memory.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "models/kernels/attention.h"
#include "models/ops/kernel_registry.h"

namespace droptest::models {

/// The cut of rows of logits into chunks. `rows` depends only on numbers that all ranks know, so that the reductions of
/// all ranks match.
struct LogitChunks {
  std::int64_t stride = 0;  ///< elements from one row to the next
  std::int64_t rows = 0;    ///< rows of each chunk except the last one
};

/// The element types of an implementation.
struct OpsTypes {
  comm::ElementType activations{};  ///< activations and their gradients
  comm::ElementType operands{};     ///< operands of GEMMs with weights
  comm::ElementType messages{};     ///< messages of sums over ranks; the activations' type on a single rank
  comm::ElementType statistics{};   ///< numbers of rows: means, deviations, maxima, sums of exponentials
  comm::ElementType losses{};       ///< the loss of each row
  comm::ElementType parameters{};   ///< master values, gradients, moments
};

/// The form of an implementation, known without a device. Sizes are elements, not bytes.
class OpsForm {
 public:
  virtual ~OpsForm() = default;
  virtual OpsTypes types() const = 0;
  virtual KernelDevice device() const = 0;
  /// The number of threads of the host's team. Default: 1.
  virtual int threads() const { return 1; }

  /// The size of attention's statistics, which the backward pass reads.
  virtual std::uint64_t attention_statistics_elems(const AttentionShape& shape) const = 0;
  /// The size of attention's scratch, in the activations' type forward and in the statistics' type backward.
  virtual std::uint64_t attention_forward_scratch_elems(const AttentionShape& shape) const = 0;
  virtual std::uint64_t attention_backward_scratch_elems(const AttentionShape& shape) const = 0;
  /// The size of the scratch of norm_backward(), in the statistics' type.
  virtual std::uint64_t norm_scratch_elems(std::int64_t rows, std::int64_t width) const = 0;
  /// Whether gelu_forward() needs `saved` even if no backward pass follows.
  virtual bool gelu_needs_room() const = 0;
  /// Whether gelu_of_projection() has the bits of gelu_forward().
  virtual bool gelu_from_projection() const = 0;
  /// Whether gelu_backward_input() computes the gradient of the bias before the GELU. Otherwise
  /// linear_backward_weight() of that layer gets the bias and computes it.
  virtual bool gelu_sums_bias() const = 0;
  /// The chunks for `rows` rows of logits. `columns` is the number of this rank's columns, `largest_part` the largest
  /// number over the ranks.
  virtual LogitChunks logit_chunks(std::int64_t rows, std::int64_t columns, std::int64_t largest_part) const = 0;
  /// Whether cross_entropy() is available to a rank that has the whole vocabulary.
  virtual bool fuses_cross_entropy() const = 0;
  /// Whether the gradients of the logits are rounded to float16, which loses small ones. LogitBlock::factor then
  /// includes the loss scale; otherwise the GEMMs that read the gradients apply it. Default: no.
  virtual bool rounds_logit_gradients_to_fp16() const { return false; }
  /// Whether attention supports dropout. Default: no.
  virtual bool drops_probabilities() const { return false; }
};

}  // namespace droptest::models
