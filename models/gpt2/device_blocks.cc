// SPDX-License-Identifier: Apache-2.0
// The passes of DeviceModel through its blocks.
#include <type_traits>

#include "models/gpt2/device_model.h"
#include "models/kernels/bf16.h"
#include "models/kernels/embedding.h"
#include "models/kernels/layernorm.h"

namespace droptest::models {
namespace {

constexpr std::size_t kTokens = 0;     ///< wte
constexpr std::size_t kPositions = 1;  ///< wpe

}  // namespace

template <class E>
void DeviceModel<E>::run_blocks(DeviceActivations<E>& buffers) {
  const BatchShape& shape = buffers.extents().batch;
  const std::int64_t width = config_.width;
  const comm::DeviceSpan<E> stream = buffers.attention[0].norm.stream;
  embedding_forward<E>(
      buffers.tokens,
      {static_cast<std::int64_t>(part_.vocabulary.first), static_cast<std::int64_t>(part_.vocabulary.count)},
      weight(kTokens), width, stream, stream_);
  if constexpr (!std::is_same_v<E, float>) {
    if (!buffers.message.empty()) convert<float, E>(stream, buffers.message, stream_);
  }
  collectives_.begin_sum(stream, buffers.message, {sim::TrafficClass::kTpForward, "wte", -1});
  collectives_.join();
  add_positions<E>(weight(kPositions), shape.batch, shape.length, width, stream, stream_);

  const NormBuffers<E>* before = nullptr;
  std::optional<Pending> pending;
  for (std::size_t layer = 0; layer < buffers.attention.size(); ++layer) {
    const Half& attention = halves_[2 * layer];
    AttentionBuffers<E>& a = buffers.attention[layer];
    normalise(attention.norm, a.norm, before, pending);
    attention_forward_half(attention, a, shape, buffers.message);
    const Half& mlp = halves_[2 * layer + 1];
    MlpBuffers<E>& m = buffers.mlp[layer];
    normalise(mlp.norm, m.norm, &a.norm, Pending{a.sum, attention.second.weight + 1});
    mlp_forward_half(mlp, m, shape, buffers.message);
    before = &m.norm;
    pending = Pending{m.sum, mlp.second.weight + 1};
  }
  normalise(parameters_.tensors().size() - 2, buffers.head.norm, before, pending);
}

template <class E>
void DeviceModel<E>::normalise(std::size_t norm, const NormBuffers<E>& buffers, const NormBuffers<E>* before,
                               const std::optional<Pending>& pending) {
  const auto rows = static_cast<std::int64_t>(buffers.mean.size());
  if (!pending) {
    layernorm_forward<E>(buffers.stream, weight(norm), weight(norm + 1), rows, config_.width, buffers.normalized,
                         buffers.mean, buffers.inverse_deviation, stream_);
  } else {
    residual_layernorm_forward<E>(before->stream, pending->sum, weight(pending->bias), weight(norm), weight(norm + 1),
                                  rows, config_.width, buffers.stream, buffers.normalized, buffers.mean,
                                  buffers.inverse_deviation, stream_);
  }
}

template <class E>
void DeviceModel<E>::row_parallel_forward(const Linear& linear, comm::DeviceSpan<const E> input, std::int64_t rows,
                                          comm::DeviceSpan<E> sum, const MessageBuffer<E>& message) {
  compute_part(sum, message, [&](auto part) {
    products_.template forward<E>(with_rows(linear, rows), input, weight(linear.weight), {}, part);
  });
  collectives_.begin_sum(sum, message, {sim::TrafficClass::kTpForward, linear.name, linear.layer});
  collectives_.join();
}

template <class E>
void DeviceModel<E>::attention_forward_half(const Half& half, AttentionBuffers<E>& buffers, const BatchShape& shape,
                                            const MessageBuffer<E>& message) {
  const std::int64_t rows = shape.rows();
  products_.forward<E>(with_rows(half.first, rows), buffers.norm.normalized, weight(half.first.weight),
                       weight(half.first.weight + 1), buffers.qkv);
  attention_forward<E>(buffers.qkv, attention_shape(shape), buffers.log_sum_exp, buffers.mixed, stream_);
  row_parallel_forward(half.second, buffers.mixed, rows, buffers.sum, message);
}

template <class E>
void DeviceModel<E>::mlp_forward_half(const Half& half, MlpBuffers<E>& buffers, const BatchShape& shape,
                                      const MessageBuffer<E>& message) {
  const std::int64_t rows = shape.rows();
  products_.forward_gelu<E>(with_rows(half.first, rows), buffers.norm.normalized, weight(half.first.weight),
                            weight(half.first.weight + 1), buffers.pre_gelu, buffers.after_gelu);
  row_parallel_forward(half.second, buffers.after_gelu, rows, buffers.sum, message);
}

template <class E>
void DeviceModel<E>::run_blocks_backward(DeviceActivations<E>& buffers, GradientMode mode) {
  const BatchShape& shape = buffers.extents().batch;
  BackwardBuffers<E>& b = buffers.backward;
  // A row-parallel layer's bias was added to the stream that the next half normalises: its gradient are the sums of the
  // columns of that stream's gradient, which that half's layer norm has in hand.
  const auto bias_before = [this](std::size_t half) -> std::optional<std::size_t> {
    if (half == 0) return std::nullopt;
    return halves_[half - 1].second.weight + 1;
  };
  normalise_backward(parameters_.tensors().size() - 2, buffers.head.norm, bias_before(halves_.size()), {}, b, mode);
  for (std::size_t layer = buffers.mlp.size(); layer-- > 0;) {
    const std::size_t attention = 2 * layer;
    const std::size_t mlp = attention + 1;
    mlp_backward_half(halves_[mlp], buffers.mlp[layer], b, buffers.message, shape, mode);
    normalise_backward(halves_[mlp].norm, buffers.mlp[layer].norm, bias_before(mlp), b.grad_stream, b, mode);
    attention_backward_half(halves_[attention], buffers.attention[layer], b, buffers.message, shape, mode);
    normalise_backward(halves_[attention].norm, buffers.attention[layer].norm, bias_before(attention), b.grad_stream, b,
                       mode);
  }
  positions_backward<E>(b.grad_stream, shape.batch, shape.length, config_.width, mode, parameters_.gradient(kPositions),
                        stream_);
  embedding_backward<E>(*groups_, b.grad_stream, config_.width, parameters_.gradient(kTokens), stream_);
}

template <class E>
void DeviceModel<E>::normalise_backward(std::size_t norm, const NormBuffers<E>& norm_buffers,
                                        std::optional<std::size_t> summed_bias, comm::DeviceSpan<const E> grad_residual,
                                        BackwardBuffers<E>& backward, GradientMode mode) {
  collectives_.join();
  LayerNormGradients gradients{parameters_.gradient(norm), parameters_.gradient(norm + 1), {}, mode};
  if (summed_bias) gradients.branch_bias = parameters_.gradient(*summed_bias);
  layernorm_backward<E>(backward.grad_normalized, norm_buffers.stream, weight(norm), norm_buffers.mean,
                        norm_buffers.inverse_deviation, static_cast<std::int64_t>(norm_buffers.mean.size()),
                        config_.width, grad_residual, backward.grad_stream, gradients, backward.norm_scratch, stream_);
}

template <class E>
void DeviceModel<E>::begin_input_gradient(const Linear& linear, comm::DeviceSpan<const E> grad_output,
                                          std::int64_t rows, BackwardBuffers<E>& backward,
                                          const MessageBuffer<E>& message) {
  compute_part(backward.grad_normalized, message, [&](auto part) {
    products_.template backward_input<E>(with_rows(linear, rows), grad_output, weight(linear.weight), 1.0F, part);
  });
  collectives_.begin_sum(backward.grad_normalized, message,
                         {sim::TrafficClass::kTpBackward, linear.name, linear.layer});
}

template <class E>
void DeviceModel<E>::weight_gradient(const Linear& linear, comm::DeviceSpan<const E> input,
                                     comm::DeviceSpan<const E> grad_output, std::int64_t rows, GradientMode mode,
                                     comm::DeviceSpan<float> grad_bias) {
  products_.backward_weight<E>(with_rows(linear, rows), input, grad_output, 1.0F, mode,
                               parameters_.gradient(linear.weight), grad_bias);
}

// In both halves the ranks' gradients of the half's input are summed as soon as they are there; the gradients of the
// weights, which nobody waits for, are computed meanwhile.
template <class E>
void DeviceModel<E>::mlp_backward_half(const Half& half, MlpBuffers<E>& buffers, BackwardBuffers<E>& backward,
                                       const MessageBuffer<E>& message, const BatchShape& shape, GradientMode mode) {
  const std::int64_t rows = shape.rows();
  products_.backward_input_gelu<E>(with_rows(half.second, rows), backward.grad_stream, weight(half.second.weight), 1.0F,
                                   buffers.pre_gelu, backward.grad_hidden);
  begin_input_gradient(half.first, backward.grad_hidden, rows, backward, message);
  weight_gradient(half.second, buffers.after_gelu, backward.grad_stream, rows, mode, {});
  weight_gradient(half.first, buffers.norm.normalized, backward.grad_hidden, rows, mode,
                  parameters_.gradient(half.first.weight + 1));
}

template <class E>
void DeviceModel<E>::attention_backward_half(const Half& half, AttentionBuffers<E>& buffers,
                                             BackwardBuffers<E>& backward, const MessageBuffer<E>& message,
                                             const BatchShape& shape, GradientMode mode) {
  const std::int64_t rows = shape.rows();
  products_.backward_input<E>(with_rows(half.second, rows), backward.grad_stream, weight(half.second.weight), 1.0F,
                              backward.grad_mixed);
  attention_backward<E>(backward.grad_mixed, buffers.qkv, buffers.mixed, buffers.log_sum_exp, attention_shape(shape),
                        backward.grad_qkv, backward.attention_rows, stream_);
  begin_input_gradient(half.first, backward.grad_qkv, rows, backward, message);
  weight_gradient(half.second, buffers.mixed, backward.grad_stream, rows, mode, {});
  weight_gradient(half.first, buffers.norm.normalized, backward.grad_qkv, rows, mode,
                  parameters_.gradient(half.first.weight + 1));
}

template class DeviceModel<float>;
template class DeviceModel<Bf16>;

}  // namespace droptest::models
