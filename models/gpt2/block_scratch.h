// SPDX-License-Identifier: Apache-2.0
// Working memory of a pass through the blocks.
#pragma once

#include <vector>

namespace droptest::models {

/// Buffers that all blocks share, because no two use them at once. They grow on the first pass of a shape.
template <class T>
struct BlockScratch {
  std::vector<T> sum;              ///< [rows, width]: what a row-parallel layer reduces
  std::vector<T> grad_normalized;  ///< [rows, width]
  std::vector<T> grad_branch;      ///< [rows, heads or hidden columns here]
  std::vector<T> grad_qkv;         ///< [rows, 3, heads here, head width]
  std::vector<T> attention;
};

}  // namespace droptest::models
