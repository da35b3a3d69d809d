// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/attention_graph.h"

#include <numeric>
#include <string>

#include "models/kernels/attention_head.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

constexpr std::int64_t kMostGraphWidth = 128;

}  // namespace

bool attention_graph_takes(std::int64_t head_width, comm::ElementType type) {
  const bool narrow = type == comm::ElementType::kBfloat16 || type == comm::ElementType::kFloat16;
  return narrow && head_width >= 1 && head_width <= kMostGraphWidth &&
         head_width * static_cast<std::int64_t>(comm::element_bytes(type)) % AttentionGraph::kAlignmentBytes == 0;
}

AttentionGraph attention_graph(AttentionPass pass, const AttentionShape& s, comm::ElementType type) {
  DROPTEST_CHECK(attention_graph_takes(s.head_width, type) && s.batch > 0 && s.length > 0 && s.heads > 0,
                 "graph of attention: B " + std::to_string(s.batch) + ", T " + std::to_string(s.length) + ", NH " +
                     std::to_string(s.heads) + ", D " + std::to_string(s.head_width) + " in " +
                     std::string(comm::element_type_name(type)));
  const std::array<std::int64_t, 4> dims = {s.batch, s.heads, s.length, s.head_width};
  const std::int64_t part = s.heads * s.head_width;
  // A row consists of `parts` parts; the tensor is part number `number`.
  const auto rows = [&](AttentionArray array, std::int64_t parts, std::int64_t number) {
    return AttentionGraphTensor{
        array, type, number * part, dims, {s.length * parts * part, s.head_width, parts * part, 1}};
  };
  AttentionGraph graph;
  graph.pass = pass;
  graph.queries = rows(AttentionArray::kQkv, 3, 0);
  graph.keys = rows(AttentionArray::kQkv, 3, 1);
  graph.values = rows(AttentionArray::kQkv, 3, 2);
  graph.output = rows(AttentionArray::kOutput, 1, 0);
  graph.log_sum_exp = {AttentionArray::kLogSumExp,
                       comm::ElementType::kFloat32,
                       0,
                       {s.batch, s.heads, s.length, 1},
                       {s.heads * s.length, s.length, 1, 1}};
  graph.scale = score_scale(s.head_width);
  if (pass == AttentionPass::kForward) return graph;
  graph.grad_output = rows(AttentionArray::kGradOutput, 1, 0);
  graph.grad_queries = rows(AttentionArray::kGradQkv, 3, 0);
  graph.grad_keys = rows(AttentionArray::kGradQkv, 3, 1);
  graph.grad_values = rows(AttentionArray::kGradQkv, 3, 2);
  return graph;
}

std::int64_t attention_graph_cut(const AttentionShape& shape) {
  constexpr std::int64_t kRows = AttentionGraph::kAlignmentBytes / static_cast<std::int64_t>(sizeof(float));
  return kRows / std::gcd(kRows, shape.heads * shape.length);
}

}  // namespace droptest::models
