// SPDX-License-Identifier: Apache-2.0
// A graph of attention computed on the host, tensor by tensor as its extents and strides say.
#pragma once

#include <cstdint>

#include "models/kernels/attention_graph.h"

namespace droptest::models {

/// Computes the pass in double, element by element, and rounds each result once. `arrays` are host memory; those that a
/// graph writes are written. Throws: std::invalid_argument for a tensor that does not begin at a multiple of
/// AttentionGraph::kAlignmentBytes, and for tensors whose extents do not fit each other.
void interpret_attention(const AttentionGraph& graph, const AttentionArrays& arrays, std::int64_t first_sequence);

}  // namespace droptest::models
