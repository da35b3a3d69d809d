// SPDX-License-Identifier: Apache-2.0
// A caller's own attention: dense, on one rank.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "models/attention/distributed_attention.h"
#include "tests/models/attention/dense_attention.h"

namespace droptest::models {

/// The attention of a user of the library: dense, with only the combined mask.
class DenseLocalAttention final : public LocalAttention<double> {
 public:
  void forward(const LocalInputs<double>& inputs, const HeadView<double>& output) override {
    copy_heads<double>(view(run(inputs, WholeTensor(inputs.queries.shape)).output), output);
  }
  void backward(const LocalInputs<double>& inputs, const HeadView<const double>& /*output*/,
                const HeadView<const double>& grad_output, const AttentionGradients<double>& gradients) override {
    const DenseAttention dense = run(inputs, whole(grad_output));
    copy_heads<double>(view(dense.grad_queries), gradients.queries);
    copy_heads<double>(view(dense.grad_keys), gradients.keys);
    copy_heads<double>(view(dense.grad_values), gradients.values);
  }

  std::vector<std::int64_t> first_heads;

 private:
  static HeadView<const double> view(const WholeTensor& tensor) {
    return view_of("dense", std::span<const double>(tensor.elems), tensor.shape, TokenLayout::kBatchFirst);
  }
  static WholeTensor whole(const HeadView<const double>& from) {
    WholeTensor tensor(from.shape);
    copy_heads(from, view_of("dense", std::span(tensor.elems), from.shape, TokenLayout::kBatchFirst));
    return tensor;
  }
  DenseAttention run(const LocalInputs<double>& inputs, const WholeTensor& grad) {
    first_heads.push_back(inputs.first_head);
    const HeadShape& shape = inputs.queries.shape;
    return dense_attention(
        whole(inputs.queries), whole(inputs.keys), whole(inputs.values),
        [&](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) {
          const auto head = static_cast<std::size_t>((k * shape.batch + b) * shape.heads + h);
          if (!inputs.absent.empty() && inputs.absent[head] != 0) return -std::numeric_limits<double>::infinity();
          if (inputs.mask.empty()) return 0.0;
          return inputs.mask[static_cast<std::size_t>((b * shape.tokens + q) * shape.tokens + k)];
        },
        grad);
  }
};

}  // namespace droptest::models
