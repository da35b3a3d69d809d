// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/device_activations.h"

#include <type_traits>
#include <utility>

#include "models/kernels/bf16.h"
#include "models/kernels/layernorm.h"

namespace droptest::models {
namespace {

// Time counts the parts of a forward and backward pass: the embedding is 0, then come the halves of the blocks, the
// head with both its passes, the halves in reverse, and the embedding's backward pass.
class PassTimes {
 public:
  PassTimes(int layers, Keep keep) : halves_(2 * layers), keep_(keep) {}

  int forward(int half) const { return 1 + half; }
  int head() const { return 1 + halves_; }
  int backward(int half) const { return head() + halves_ - half; }
  int end() const { return head() + halves_ + 1; }
  /// Last time of what is computed in a half's forward pass for its backward pass.
  int kept_by(int half) const { return keep_ == Keep::kForBackward ? backward(half) : forward(half); }

 private:
  int halves_;
  Keep keep_;
};

std::uint64_t elems(std::int64_t rows, std::int64_t columns) { return static_cast<std::uint64_t>(rows * columns); }

}  // namespace

/// Collects what is wanted, and how each span is to be set once the memory is there.
template <class E>
class DeviceActivations<E>::Builder {
 public:
  explicit Builder(std::vector<Setter>& setters) : setters_(setters) {}

  template <class T>
  void want(comm::DeviceSpan<T>& span, std::string name, std::uint64_t count, int first_time, int last_time) {
    buffers_.push_back({std::move(name), count * sizeof(T), first_time, last_time});
    setters_.push_back({[](void* to, std::byte* data, std::uint64_t number) {
                          *static_cast<comm::DeviceSpan<T>*>(to) = {reinterpret_cast<T*>(data), number};
                        },
                        &span, count});
  }

  std::vector<PlannedBuffer> take() { return std::move(buffers_); }

 private:
  std::vector<Setter>& setters_;
  std::vector<PlannedBuffer> buffers_;
};

template <class E>
DeviceActivations<E>::DeviceActivations(const ActivationExtents& extents, Keep keep)
    : attention(static_cast<std::size_t>(extents.layers)),
      mlp(static_cast<std::size_t>(extents.layers)),
      extents_(extents),
      plan_(planned(keep)) {}

template <class E>
std::vector<PlannedBuffer> DeviceActivations<E>::planned(Keep keep) {
  const ActivationExtents& x = extents_;
  const std::int64_t rows = x.batch.rows();
  const std::int64_t mixed = x.heads * x.head_width;
  const std::uint64_t row_heads = elems(x.batch.batch * x.heads, x.batch.length);
  const PassTimes times(x.layers, keep);
  Builder builder(setters_);

  builder.want(tokens, "tokens", elems(rows, 1), 0, times.end());
  builder.want(targets, "tokens", elems(rows, 1), 0, times.end());
  if ((x.message == Precision::kFloat32) != std::is_same_v<E, float>) {
    builder.want(message, "messages", elems(rows, x.width), 0, times.end());
  }
  // The stream of a half is read by the next half, which makes its own of it.
  const auto want_norm = [&](NormBuffers<E>& norm, int time, int stream_from, int stream_to, int kept) {
    builder.want(norm.stream, "residual stream", elems(rows, x.width), stream_from, std::max(stream_to, kept));
    builder.want(norm.normalized, "normalised inputs", elems(rows, x.width), time, kept);
    builder.want(norm.mean, "row statistics", elems(rows, 1), time, kept);
    builder.want(norm.inverse_deviation, "row statistics", elems(rows, 1), time, kept);
  };
  for (int layer = 0; layer < x.layers; ++layer) {
    AttentionBuffers<E>& a = attention[static_cast<std::size_t>(layer)];
    const int a_half = 2 * layer;
    const int a_time = times.forward(a_half);
    const int a_kept = times.kept_by(a_half);
    want_norm(a.norm, a_time, layer == 0 ? 0 : a_time, a_time + 1, a_kept);
    builder.want(a.qkv, "queries, keys and values", elems(rows, 3 * mixed), a_time, a_kept);
    builder.want(a.log_sum_exp, "row statistics", row_heads, a_time, a_kept);
    builder.want(a.mixed, "attention outputs", elems(rows, mixed), a_time, a_kept);
    builder.want(a.sum, "sums over ranks", elems(rows, x.width), a_time, a_time + 1);

    MlpBuffers<E>& m = mlp[static_cast<std::size_t>(layer)];
    const int m_time = times.forward(a_half + 1);
    const int m_kept = times.kept_by(a_half + 1);
    want_norm(m.norm, m_time, m_time, m_time + 1, m_kept);
    builder.want(m.pre_gelu, "inputs of GELU", elems(rows, x.hidden), m_time, m_kept);
    builder.want(m.after_gelu, "outputs of GELU", elems(rows, x.hidden), m_time, m_kept);
    builder.want(m.sum, "sums over ranks", elems(rows, x.width), m_time, m_time + 1);
  }
  const int head_time = times.head();
  want_norm(head.norm, head_time, head_time, head_time, head_time);
  builder.want(head.logits, "logits", elems(x.logits_rows, x.logits_stride), head_time, head_time);
  for (comm::DeviceSpan<float>* span : {&head.largest, &head.sums, &head.predicted}) {
    builder.want(*span, "row statistics", elems(x.logits_rows, 1), head_time, head_time);
  }
  builder.want(head.losses, "row statistics", elems(rows, 1), head_time, head_time);
  if (keep == Keep::kNothing) return builder.take();

  BackwardBuffers<E>& b = backward;
  const int last = times.end() - 1;
  builder.want(b.grad_stream, "gradient of the stream", elems(rows, x.width), head_time, times.end());
  builder.want(b.grad_normalized, "gradients within a block", elems(rows, x.width), head_time, last);
  builder.want(b.grad_mixed, "gradients within a block", elems(rows, mixed), head_time + 1, last);
  builder.want(b.grad_qkv, "gradients within a block", elems(rows, 3 * mixed), head_time + 1, last);
  builder.want(b.grad_hidden, "gradients within a block", elems(rows, x.hidden), head_time + 1, last);
  builder.want(b.norm_scratch, "row statistics", layernorm_scratch_elems(rows, x.width), head_time, last);
  builder.want(b.attention_rows, "row statistics", row_heads, head_time + 1, last);
  return builder.take();
}

template <class E>
std::string DeviceActivations<E>::purpose() const {
  return "activations of a batch of " + std::to_string(extents_.batch.batch) + " x " +
         std::to_string(extents_.batch.length) + " tokens (" + plan_.largest_text(3) + ")";
}

template <class E>
void DeviceActivations<E>::place(std::byte* memory) {
  for (std::size_t i = 0; i < setters_.size(); ++i) {
    setters_[i].set(setters_[i].span, memory + plan_.offset(i), setters_[i].elems);
  }
}

template class DeviceActivations<float>;
template class DeviceActivations<Bf16>;

}  // namespace droptest::models
