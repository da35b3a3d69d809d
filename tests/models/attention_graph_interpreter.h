// SPDX-License-Identifier: Apache-2.0
// Computes a graph of attention on the host, with the extents and strides of its tensors.
#pragma once

#include <cstdint>

#include "models/kernels/attention_graph.h"

namespace droptest::models {

/// Computes the pass in double, element by element, and rounds each result once. `arrays` are in host memory; the
/// arrays of the graph's results are written. Throws: std::invalid_argument for a tensor that does not begin at a
/// multiple of AttentionGraph::kAlignmentBytes, and for tensors with inconsistent extents.
void interpret_attention(const AttentionGraph& graph, const AttentionArrays& arrays, std::int64_t first_sequence);

}  // namespace droptest::models
