// SPDX-License-Identifier: Apache-2.0
// The description of an attention pass as a graph of tensors, for libraries that compute a whole pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "comm/tensor.h"
#include "models/kernels/attention.h"

namespace droptest::models {

enum class AttentionPass : std::uint8_t { kForward, kBackward };

/// The arrays of AttentionKernel's passes in which a graph's tensors lie.
enum class AttentionArray : std::uint8_t { kQkv, kOutput, kLogSumExp, kGradOutput, kGradQkv };
/// The first byte of each array, indexed by AttentionArray; null if the pass has no such array.
using AttentionArrays = std::array<const std::byte*, 5>;

/// A tensor [B, NH, T, D], or [B, NH, T, 1] with one number for each row.
struct AttentionGraphTensor {
  AttentionArray array = AttentionArray::kQkv;
  comm::ElementType type = comm::ElementType::kBfloat16;
  std::int64_t first_elem = 0;  ///< offset of the tensor in the array
  std::array<std::int64_t, 4> dims{};
  std::array<std::int64_t, 4> strides{};  ///< distance between neighbouring indices of each axis, in elements

  /// The address of the first element of sequence `first_sequence`.
  const std::byte* address(const AttentionArrays& arrays, std::int64_t first_sequence) const {
    return arrays[static_cast<std::size_t>(array)] +
           (first_elem + first_sequence * strides[0]) * static_cast<std::int64_t>(comm::element_bytes(type));
  }
};

/// output = softmax(mask(scale Q K')) V; query t sees the keys 0 to t + band_right. log_sum_exp is that of the masked
/// and scaled scores, as a natural logarithm. Sums are float. A backward pass reads output and log_sum_exp, and has the
/// tensors of gradients.
struct AttentionGraph {
  static constexpr std::int64_t kAlignmentBytes = 16;  ///< each tensor begins at a multiple of this

  AttentionPass pass = AttentionPass::kForward;
  AttentionGraphTensor queries, keys, values, output, log_sum_exp;
  AttentionGraphTensor grad_output, grad_queries, grad_keys, grad_values;
  double scale = 1;
  std::int64_t band_right = 0;
  bool deterministic = true;  ///< equal arguments give equal bits
};

/// Whether a graph can have heads of this width and type: at most 128 elements of 16 bits, which fill a multiple of
/// kAlignmentBytes, so that each tensor begins at such a multiple.
bool attention_graph_takes(std::int64_t head_width, comm::ElementType type);

/// The graph for shape.batch sequences of qkv (see AttentionShape). Throws: CheckError unless attention_graph_takes()
/// the heads and no extent is 0.
AttentionGraph attention_graph(AttentionPass pass, const AttentionShape& shape, comm::ElementType type);

/// If a batch is cut into parts, the number of sequences of each part except the last must be a multiple of this
/// number. Then the tensors of each part begin at multiples of kAlignmentBytes, although the log-sum-exp of a row has
/// only 4 bytes.
std::int64_t attention_graph_cut(const AttentionShape& shape);

}  // namespace droptest::models
