// SPDX-License-Identifier: Apache-2.0
// Working memory of a pass through the blocks.
#pragma once

#include <span>
#include <vector>

namespace droptest::models {

/// What the attention half keeps between its passes.
template <class T>
struct AttentionActivations {
  std::vector<T> normalized;      ///< [rows, width]
  std::vector<T> qkv;             ///< [rows, 3, heads here, head width]
  std::vector<T> row_statistics;  ///< of attention's rows
  std::vector<T> mixed;           ///< [rows, heads here, head width]
};

/// What the MLP half keeps between its passes.
template <class T>
struct MlpActivations {
  std::vector<T> normalized;  ///< [rows, width]
  std::vector<T> slopes;      ///< of GELU, [rows, hidden columns here]
  std::vector<T> after_gelu;  ///< [rows, hidden columns here]
};

/// Buffers that all blocks share, because no two use them at once. They grow on the first pass of a shape.
template <class T>
struct BlockScratch {
  std::vector<T> sum;              ///< [rows, width]: what a row-parallel layer has reduced
  std::vector<T> grad_normalized;  ///< [rows, width]
  std::vector<T> grad_branch;      ///< [rows, heads or hidden columns here]
  std::vector<T> grad_qkv;         ///< [rows, 3, heads here, head width]
  std::vector<T> attention;
  AttentionActivations<T> attention_activations;  ///< of passes that keep nothing
  MlpActivations<T> mlp_activations;              ///< likewise
};

/// What a half of a block has to add to the residual stream, before its bias; the next layer norm adds both.
/// Empty in front of the first block. Shapes: sum [rows, width], bias [width].
template <class T>
struct Branch {
  std::span<const T> sum{};
  std::span<const T> bias{};
};

}  // namespace droptest::models
