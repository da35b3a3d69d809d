// SPDX-License-Identifier: Apache-2.0
#include "tests/models/attention_graph_interpreter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace droptest::models {
namespace {

using comm::ElementType;

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void write(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof value);
}

/// A tensor of the graph in its array.
class Placed {
 public:
  Placed(const char* name, const AttentionGraphTensor& tensor, const AttentionArrays& arrays,
         std::int64_t first_sequence)
      : tensor_(tensor), first_(const_cast<std::byte*>(tensor.address(arrays, first_sequence))) {
    if (reinterpret_cast<std::uintptr_t>(first_) % AttentionGraph::kAlignmentBytes == 0) return;
    throw std::invalid_argument(std::string(name) + " do not begin at a multiple of 16 bytes");
  }

  double get(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t d) const {
    const std::byte* const from = at(b, h, t, d);
    if (tensor_.type == ElementType::kFloat32) return read<float>(from);
    if (tensor_.type == ElementType::kFloat16) return to_float(read<comm::Fp16>(from));
    return to_float(read<comm::Bf16>(from));
  }
  void set(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t d, double value) const {
    const auto narrow = static_cast<float>(value);
    if (tensor_.type == ElementType::kFloat32) return write(narrow, at(b, h, t, d));
    if (tensor_.type == ElementType::kFloat16) return write(comm::to_fp16(narrow), at(b, h, t, d));
    write(comm::to_bf16(narrow), at(b, h, t, d));
  }
  std::int64_t extent(std::size_t i) const { return tensor_.dims[i]; }

 private:
  std::byte* at(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t d) const {
    const std::array<std::int64_t, 4>& s = tensor_.strides;
    return first_ +
           (b * s[0] + h * s[1] + t * s[2] + d * s[3]) * static_cast<std::int64_t>(comm::element_bytes(tensor_.type));
  }

  AttentionGraphTensor tensor_;
  std::byte* first_;
};

using Row = std::vector<double>;

Row row_of(const Placed& tensor, std::int64_t b, std::int64_t h, std::int64_t t) {
  Row row;
  for (std::int64_t d = 0; d < tensor.extent(3); ++d) row.push_back(tensor.get(b, h, t, d));
  return row;
}

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

void add_to(Row& sum, double factor, const Row& row) {
  for (std::size_t i = 0; i < row.size(); ++i) sum.at(i) += factor * row[i];
}

void set_row(const Placed& tensor, std::int64_t b, std::int64_t h, std::int64_t t, const Row& row) {
  for (std::int64_t d = 0; d < tensor.extent(3); ++d) tensor.set(b, h, t, d, row.at(static_cast<std::size_t>(d)));
}

}  // namespace

void interpret_attention(const AttentionGraph& graph, const AttentionArrays& arrays, std::int64_t first_sequence) {
  const auto placed = [&](const char* name, const AttentionGraphTensor& tensor) {
    return Placed(name, tensor, arrays, first_sequence);
  };
  const Placed q = placed("queries", graph.queries);
  const Placed k = placed("keys", graph.keys);
  const Placed v = placed("values", graph.values);
  const Placed output = placed("outputs", graph.output);
  const Placed log_sum_exp = placed("log-sum-exps", graph.log_sum_exp);
  const bool backward = graph.pass == AttentionPass::kBackward;
  const std::vector<Placed> grads = backward ? std::vector{placed("gradients of outputs", graph.grad_output),
                                                           placed("gradients of queries", graph.grad_queries),
                                                           placed("gradients of keys", graph.grad_keys),
                                                           placed("gradients of values", graph.grad_values)}
                                             : std::vector<Placed>();
  if (k.extent(2) != v.extent(2) || q.extent(3) != k.extent(3) || log_sum_exp.extent(3) != 1) {
    throw std::invalid_argument("extents of a graph of attention");
  }

  const std::int64_t keys = k.extent(2);
  for (std::int64_t b = 0; b < q.extent(0); ++b) {
    for (std::int64_t h = 0; h < q.extent(1); ++h) {
      std::vector<Row> grad_k(static_cast<std::size_t>(keys), Row(static_cast<std::size_t>(k.extent(3))));
      std::vector<Row> grad_v(static_cast<std::size_t>(keys), Row(static_cast<std::size_t>(v.extent(3))));
      for (std::int64_t t = 0; t < q.extent(2); ++t) {
        const std::int64_t seen = std::clamp<std::int64_t>(t + graph.band_right + 1, 0, keys);
        const Row query = row_of(q, b, h, t);
        Row scores;
        for (std::int64_t u = 0; u < seen; ++u) scores.push_back(graph.scale * dot(query, row_of(k, b, h, u)));
        if (!backward) {
          const double largest = *std::max_element(scores.begin(), scores.end());
          double sum = 0;
          for (const double score : scores) sum += std::exp(score - largest);
          Row result(static_cast<std::size_t>(v.extent(3)));
          for (std::int64_t u = 0; u < seen; ++u) {
            add_to(result, std::exp(scores[static_cast<std::size_t>(u)] - largest) / sum, row_of(v, b, h, u));
          }
          set_row(output, b, h, t, result);
          log_sum_exp.set(b, h, t, 0, largest + std::log(sum));
          continue;
        }
        const Row grad_output = row_of(grads[0], b, h, t);
        const double delta = dot(grad_output, row_of(output, b, h, t));
        Row grad_q(query.size());
        for (std::int64_t u = 0; u < seen; ++u) {
          const auto i = static_cast<std::size_t>(u);
          const double probability = std::exp(scores[i] - log_sum_exp.get(b, h, t, 0));
          const double grad_score = graph.scale * probability * (dot(grad_output, row_of(v, b, h, u)) - delta);
          add_to(grad_q, grad_score, row_of(k, b, h, u));
          add_to(grad_k[i], grad_score, query);
          add_to(grad_v[i], probability, grad_output);
        }
        set_row(grads[1], b, h, t, grad_q);
      }
      if (!backward) continue;
      for (std::int64_t u = 0; u < keys; ++u) {
        set_row(grads[2], b, h, u, grad_k[static_cast<std::size_t>(u)]);
        set_row(grads[3], b, h, u, grad_v[static_cast<std::size_t>(u)]);
      }
    }
  }
}

}  // namespace droptest::models
