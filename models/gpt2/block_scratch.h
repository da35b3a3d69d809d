// SPDX-License-Identifier: Apache-2.0
// Working memory of a pass through the blocks.
#pragma once

#include <span>
#include <vector>

namespace droptest::models {

/// Buffers that all blocks share, because no two use them at once. They grow on the first pass of a shape.
template <class T>
struct BlockScratch {
  std::vector<T> sum;              ///< [rows, width]: what a row-parallel layer has reduced
  std::vector<T> grad_normalized;  ///< [rows, width]
  std::vector<T> grad_branch;      ///< [rows, heads or hidden columns here]
  std::vector<T> grad_qkv;         ///< [rows, 3, heads here, head width]
  std::vector<T> attention;
};

/// What a half of a block has to add to the residual stream, before its bias; the next layer norm adds both.
/// Empty in front of the first block. Shapes: sum [rows, width], bias [width].
template <class T>
struct Branch {
  std::span<const T> sum{};
  std::span<const T> bias{};
};

}  // namespace droptest::models
