// SPDX-License-Identifier: Apache-2.0
// Attention in the order of its formula. Sums are double, in the order of rows and columns. Probabilities and their
// gradients are stored in the element type.
#include <algorithm>
#include <cmath>
#include <limits>

#include "models/kernels/attention_head.h"
#include "models/kernels/attention_kernel.h"
#include "models/kernels/chunks.h"
#include "models/kernels/host_floats.h"

namespace droptest::models {
namespace {

/// The sum over d of a[d] b[d].
template <class T>
double inner_product(const T* a, const T* b, std::int64_t width) {
  double sum = 0;
  for (std::int64_t d = 0; d < width; ++d) sum += static_cast<double>(a[d]) * static_cast<double>(b[d]);
  return sum;
}

/// p[u] = the probability of key u for query t, for u from 0 to t.
template <class T>
void probabilities_of_row(const AttentionHead<T>& head, const AttentionShape& shape, std::int64_t t, T* p) {
  const auto score = [&](std::int64_t u) {
    return score_scale(shape.head_width) *
           inner_product(head.q + t * head.qkv_stride, head.k + u * head.qkv_stride, shape.head_width);
  };
  double largest = -std::numeric_limits<double>::infinity();
  for (std::int64_t u = 0; u <= t; ++u) largest = std::max(largest, score(u));
  double sum = 0;
  for (std::int64_t u = 0; u <= t; ++u) sum += std::exp(score(u) - largest);
  for (std::int64_t u = 0; u <= t; ++u) p[u] = static_cast<T>(std::exp(score(u) - largest) / sum);
}

/// factors[u] = the dropout factor of key u for query t, 1 without dropout, for u from 0 to t.
template <class T>
void factors_of_row(const DropoutMask& mask, const AttentionShape& shape, std::int64_t index, std::int64_t t,
                    T* factors) {
  std::fill_n(factors, t + 1, T(1));
  if (!mask.is_on()) return;
  for_dropped_row<T>(dropout_of_query(mask, shape, index, t), mask.first_position, t + 1,
                     [factors](std::int64_t u, T factor) { factors[u] = factor; });
}

/// to[d] = the sum over i from first to last of weight(i) rows[i, d].
template <class T, class WeightOf>
void weighted_rows(std::int64_t first, std::int64_t last, const WeightOf& weight, const T* rows, std::int64_t stride,
                   std::int64_t width, T* to) {
  for (std::int64_t d = 0; d < width; ++d) {
    double sum = 0;
    for (std::int64_t i = first; i <= last; ++i) sum += weight(i) * static_cast<double>(rows[i * stride + d]);
    to[d] = static_cast<T>(sum);
  }
}

template <class T>
void forward_of_head(const AttentionForwardTensors& tensors, const AttentionShape& shape, std::int64_t index, T* p) {
  const AttentionHead<T> head = attention_head(tensors.qkv.as<T>(), shape, index);
  T* const output = tensors.output.as<T>().data() + head.output_offset;
  for (std::int64_t t = 0; t < shape.length; ++t) {
    probabilities_of_row(head, shape, t, p);
    if (tensors.dropout.is_on()) {
      for_dropped_row<T>(dropout_of_query(tensors.dropout, shape, index, t), tensors.dropout.first_position, t + 1,
                         [p](std::int64_t u, T factor) { p[u] *= factor; });
    }
    weighted_rows<T>(
        0, t, [p](std::int64_t u) { return static_cast<double>(p[u]); }, head.v, head.qkv_stride, shape.head_width,
        output + t * head.output_stride);
  }
}

/// Leaves the probabilities [T, T] after dropout in p, and the gradients [T, T] of the inner products Q K', which are
/// the scores before the scale is applied, in ds.
template <class T>
void backward_of_head(const AttentionBackwardTensors& tensors, const AttentionShape& shape, std::int64_t index, T* p,
                      T* ds) {
  const AttentionHead<T> head = attention_head(tensors.qkv.as<T>(), shape, index);
  const std::int64_t length = shape.length;
  const std::int64_t width = shape.head_width;
  const std::int64_t stride = head.qkv_stride;
  const T* const grad_output = tensors.grad_output.as<T>().data() + head.output_offset;
  T* const dq = tensors.grad_qkv.as<T>().data() + head.qkv_offset;
  T* const dk = dq + shape.heads * width;
  T* const dv = dk + shape.heads * width;
  for (std::int64_t t = 0; t < length; ++t) {
    T* const p_row = p + t * length;
    T* const ds_row = ds + t * length;
    probabilities_of_row(head, shape, t, p_row);
    factors_of_row(tensors.dropout, shape, index, t, ds_row);
    const auto grad_p = [&](std::int64_t u) {
      return static_cast<double>(ds_row[u]) *
             inner_product(grad_output + t * head.output_stride, head.v + u * stride, width);
    };
    double mean = 0;  // mean of the gradients, weighted by the probabilities
    for (std::int64_t u = 0; u <= t; ++u) mean += static_cast<double>(p_row[u]) * grad_p(u);
    for (std::int64_t u = 0; u <= t; ++u) {
      const T factor = ds_row[u];
      ds_row[u] = static_cast<T>(static_cast<double>(p_row[u]) * (grad_p(u) - mean) * score_scale(shape.head_width));
      p_row[u] *= factor;
    }
  }
  const auto p_at = [&](std::int64_t t, std::int64_t u) { return static_cast<double>(p[t * length + u]); };
  const auto ds_at = [&](std::int64_t t, std::int64_t u) { return static_cast<double>(ds[t * length + u]); };
  for (std::int64_t i = 0; i < length; ++i) {
    weighted_rows<T>(
        0, i, [&](std::int64_t u) { return ds_at(i, u); }, head.k, stride, width, dq + i * stride);
    weighted_rows<T>(
        i, length - 1, [&](std::int64_t t) { return ds_at(t, i); }, head.q, stride, width, dk + i * stride);
    weighted_rows<T>(
        i, length - 1, [&](std::int64_t t) { return p_at(t, i); }, grad_output, head.output_stride, width,
        dv + i * stride);
  }
}

class ReferenceAttention final : public AttentionKernel {
 public:
  std::uint64_t statistics_elems(const AttentionShape& /*shape*/) const override { return 0; }
  std::uint64_t forward_scratch_elems(const AttentionShape& shape, int threads) const override {
    return static_cast<std::uint64_t>(threads) * static_cast<std::uint64_t>(shape.length);
  }
  std::uint64_t backward_scratch_elems(const AttentionShape& shape, int threads) const override {
    return static_cast<std::uint64_t>(threads) * static_cast<std::uint64_t>(2 * shape.length * shape.length);
  }
  bool takes_dropout() const override { return true; }
  void forward(const AttentionForwardTensors& tensors, const AttentionShape& shape,
               const KernelTarget& target) const override {
    visit_host_floats(tensors.qkv.type, [&](auto type) {
      using T = typename decltype(type)::type;
      for_chunks_by_worker(
          shape.batch * shape.heads, 1, *target.team, [&](Team::Worker worker, std::int64_t index, std::int64_t) {
            forward_of_head<T>(tensors, shape, index, tensors.scratch.as<T>().data() + worker * shape.length);
          });
    });
  }
  void backward(const AttentionBackwardTensors& tensors, const AttentionShape& shape,
                const KernelTarget& target) const override {
    const std::int64_t pairs = shape.length * shape.length;
    visit_host_floats(tensors.qkv.type, [&](auto type) {
      using T = typename decltype(type)::type;
      for_chunks_by_worker(shape.batch * shape.heads, 1, *target.team,
                           [&](Team::Worker worker, std::int64_t index, std::int64_t) {
                             T* const own = tensors.scratch.as<T>().data() + worker * 2 * pairs;
                             backward_of_head<T>(tensors, shape, index, own, own + pairs);
                           });
    });
  }
};

}  // namespace

std::unique_ptr<AttentionKernel> make_reference_attention() { return std::make_unique<ReferenceAttention>(); }

}  // namespace droptest::models
