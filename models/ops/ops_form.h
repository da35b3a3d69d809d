// SPDX-License-Identifier: Apache-2.0
// Saved activations and working memory of an implementation of the operations, in types and sizes.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "models/kernels/attention.h"
#include "models/ops/kernel_registry.h"

namespace droptest::models {

/// How rows of logits are cut into chunks: functions of numbers that all ranks know, so that their reductions match.
struct LogitChunks {
  std::int64_t stride = 0;  ///< elements of a row
  std::int64_t rows = 0;    ///< of each chunk but the last
};

/// The element types of an implementation.
struct OpsTypes {
  comm::ElementType activations{};  ///< and their gradients
  comm::ElementType operands{};     ///< of GEMMs with weights
  comm::ElementType messages{};     ///< of sums over ranks; a lone rank's are the activations'
  comm::ElementType statistics{};   ///< of rows: means, deviations, maxima, sums of exponentials
  comm::ElementType losses{};       ///< of rows
  comm::ElementType parameters{};   ///< master values, gradients, moments
};

/// Known without a device. Elements, not bytes.
class OpsForm {
 public:
  virtual ~OpsForm() = default;
  virtual OpsTypes types() const = 0;
  virtual KernelDevice device() const = 0;
  /// Of the host's team. Default: one.
  virtual int threads() const { return 1; }

  /// Of attention's statistics, which the backward pass reads.
  virtual std::uint64_t attention_statistics_elems(const AttentionShape& shape) const = 0;
  /// Working memory of attention, of the activations' type in forward(), of the statistics' in backward().
  virtual std::uint64_t attention_forward_scratch_elems(const AttentionShape& shape) const = 0;
  virtual std::uint64_t attention_backward_scratch_elems(const AttentionShape& shape) const = 0;
  /// Working memory of norm_backward(), of the statistics' type.
  virtual std::uint64_t norm_scratch_elems(std::int64_t rows, std::int64_t width) const = 0;
  /// Whether gelu_forward() needs `saved` where no backward pass follows.
  virtual bool gelu_needs_room() const = 0;
  /// Whether gelu_of_projection() has the bits of gelu_forward().
  virtual bool gelu_from_projection() const = 0;
  /// Whether gelu_backward_input() gives the bias in front of the GELU its gradient. Else linear_backward_weight() of
  /// that layer does, which gets the bias then.
  virtual bool gelu_sums_bias() const = 0;
  /// `columns`: of this rank; `largest_part`: of the rank that has most.
  virtual LogitChunks logit_chunks(std::int64_t rows, std::int64_t columns, std::int64_t largest_part) const = 0;
  /// Whether cross_entropy() serves a rank that has the whole vocabulary.
  virtual bool fuses_cross_entropy() const = 0;
  /// Whether gradients by the logits are rounded to float16, in which small ones vanish, so that the loss scale goes
  /// into LogitBlock::factor. Else the products with them apply it. Default: no.
  virtual bool rounds_logit_gradients_to_fp16() const { return false; }
  /// Whether attention takes dropout. Default: no.
  virtual bool drops_probabilities() const { return false; }
};

}  // namespace droptest::models
