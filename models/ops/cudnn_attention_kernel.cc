// SPDX-License-Identifier: Apache-2.0
// Attention on a device by cuDNN. If the workspace for a batch is too large, the batch is processed in parts.
#include <algorithm>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "models/kernels/attention_graph.h"
#include "models/kernels/attention_kernel.h"
#include "models/kernels/cudnn_attention.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using comm::ElementType;

// The workspace that a plan may need in addition to its large tensors.
constexpr std::uint64_t kRoomBytes = std::uint64_t{1} << 20U;

/// The largest known workspace of a deterministic backward pass of one sequence: on Hopper the gradients of all scores
/// in 16 bits, elsewhere the sums of the queries' gradients in float, with lengths rounded up to tiles; and two numbers
/// for each row.
std::uint64_t backward_bytes_of_sequence(const AttentionShape& s) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t length = (s.length + kTile - 1) / kTile * kTile;
  return static_cast<std::uint64_t>(s.heads * length * (2 * length + 4 * s.head_width + 8));
}

class CudnnAttention final : public AttentionKernel {
 public:
  explicit CudnnAttention(std::uint64_t most_workspace_bytes) : most_workspace_bytes_(most_workspace_bytes) {}

  std::uint64_t statistics_elems(const AttentionShape& s) const override {
    return static_cast<std::uint64_t>(s.batch * s.heads * s.length);
  }
  std::uint64_t forward_scratch_elems(const AttentionShape& s, int /*threads*/) const override {
    return workspace_bytes(AttentionPass::kForward, s) / 2;
  }
  std::uint64_t backward_scratch_elems(const AttentionShape& s, int /*threads*/) const override {
    return workspace_bytes(AttentionPass::kBackward, s) / sizeof(float);
  }

  void prepare(const AttentionShape& shape, ElementType type, Passes passes) const override {
    if (is_empty(shape)) return;
    (void)parts(AttentionPass::kForward, shape, type);
    if (passes == Passes::kBoth) (void)parts(AttentionPass::kBackward, shape, type);
  }

  void forward(const AttentionForwardTensors& t, const AttentionShape& shape,
               const KernelTarget& target) const override {
    const comm::ConstTensor output = t.output;
    check(shape, {&t.qkv}, {&output}, t.statistics, t.dropout);
    run(AttentionPass::kForward, shape, t.qkv.type,
        {t.qkv.bytes.data(), t.output.bytes.data(), t.statistics.bytes.data(), nullptr, nullptr}, t.scratch, target);
  }
  void backward(const AttentionBackwardTensors& t, const AttentionShape& shape,
                const KernelTarget& target) const override {
    const comm::ConstTensor grad_qkv = t.grad_qkv;
    check(shape, {&t.qkv, &grad_qkv}, {&t.output, &t.grad_output}, t.statistics, t.dropout);
    run(AttentionPass::kBackward, shape, t.qkv.type,
        {t.qkv.bytes.data(), t.output.bytes.data(), t.statistics.bytes.data(), t.grad_output.bytes.data(),
         t.grad_qkv.bytes.data()},
        t.scratch, target);
  }

 private:
  /// The plans of a batch: one for `sequences` sequences at a time, and one for the rest, if there is any.
  struct Parts {
    std::int64_t sequences = 0;
    std::unique_ptr<AttentionPlan> whole;
    std::unique_ptr<AttentionPlan> rest;
  };
  using Key = std::tuple<AttentionPass, std::int64_t, std::int64_t, std::int64_t, std::int64_t, ElementType>;

  /// Checks that the arrays are as long as the graph's tensors: `packed` has queries, keys and values, `rows` one of
  /// them.
  void check(const AttentionShape& s, std::initializer_list<const comm::ConstTensor*> packed,
             std::initializer_list<const comm::ConstTensor*> rows, const comm::ConstTensor& statistics,
             const DropoutMask& dropout) const {
    const auto elems = static_cast<std::uint64_t>(s.batch * s.length * s.heads * s.head_width);
    const auto has = [](const comm::ConstTensor& tensor, std::uint64_t wanted) {
      DROPTEST_CHECK(tensor.bytes.size() >= wanted * comm::element_bytes(tensor.type),
                     "attention by cuDNN: an array of " + std::to_string(tensor.bytes.size()) + " bytes, want " +
                         std::to_string(wanted * comm::element_bytes(tensor.type)));
    };
    for (const comm::ConstTensor* tensor : packed) has(*tensor, 3 * elems);
    for (const comm::ConstTensor* tensor : rows) has(*tensor, elems);
    has(statistics, statistics_elems(s));
    DROPTEST_CHECK(!dropout.is_on(), "attention by cuDNN has no dropout");
  }

  static bool is_empty(const AttentionShape& s) { return s.batch == 0 || s.length == 0 || s.heads == 0; }

  /// The workspace of the whole batch, but at most the bound, unless the smallest part needs more.
  std::uint64_t workspace_bytes(AttentionPass pass, const AttentionShape& s) const {
    if (is_empty(s)) return 0;
    if (pass == AttentionPass::kForward) return kRoomBytes + 2 * sizeof(float) * statistics_elems(s);
    const std::uint64_t one = backward_bytes_of_sequence(s);
    const auto least = static_cast<std::uint64_t>(std::min(s.batch, attention_graph_cut(s)));
    return kRoomBytes +
           std::min(static_cast<std::uint64_t>(s.batch) * one, std::max(least * one, most_workspace_bytes_));
  }

  const Parts& parts(AttentionPass pass, const AttentionShape& shape, ElementType type) const {
    Parts& parts = parts_[Key{pass, shape.batch, shape.length, shape.heads, shape.head_width, type}];
    if (parts.whole != nullptr) return parts;
    if (planner_ == nullptr) planner_ = make_cudnn_planner();
    const std::uint64_t room = workspace_bytes(pass, shape);
    const std::int64_t cut = attention_graph_cut(shape);
    const auto plan_of = [&](std::int64_t sequences) {
      return planner_->plan(attention_graph(pass, {sequences, shape.length, shape.heads, shape.head_width}, type));
    };
    for (std::int64_t sequences = shape.batch;; sequences = std::max(cut, sequences / 2 / cut * cut)) {
      std::unique_ptr<AttentionPlan> whole = plan_of(sequences);
      const std::int64_t left = shape.batch % sequences;
      std::unique_ptr<AttentionPlan> rest = left == 0 ? nullptr : plan_of(left);
      const std::uint64_t wanted = std::max(whole->workspace_bytes(), rest == nullptr ? 0 : rest->workspace_bytes());
      if (wanted <= room) {
        parts = {sequences, std::move(whole), std::move(rest)};
        return parts;
      }
      if (sequences <= cut) {
        throw ConfigError("attention by cuDNN wants a workspace of " + std::to_string(wanted) + " bytes for " +
                          std::to_string(sequences) + " sequences, and the memory plan has " + std::to_string(room));
      }
    }
  }

  void run(AttentionPass pass, const AttentionShape& shape, ElementType type, const AttentionArrays& arrays,
           const comm::Tensor& scratch, const KernelTarget& target) const {
    if (is_empty(shape)) return;
    const Parts& own = parts(pass, shape, type);
    for (std::int64_t first = 0; first < shape.batch; first += own.sequences) {
      AttentionPlan& plan = first + own.sequences <= shape.batch ? *own.whole : *own.rest;
      DROPTEST_CHECK(plan.workspace_bytes() <= scratch.bytes.size(),
                     "workspace of attention: got " + std::to_string(scratch.bytes.size()) + " bytes, want " +
                         std::to_string(plan.workspace_bytes()));
      plan.run(arrays, first, scratch.bytes.data(), *target.stream);
    }
  }

  std::uint64_t most_workspace_bytes_;
  // Made at the first pass or by prepare(), because planning memory needs no device.
  mutable std::unique_ptr<AttentionPlanner> planner_;
  mutable std::map<Key, Parts> parts_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_cudnn_attention() {
  return make_cudnn_attention_within(std::uint64_t{256} << 20U);
}
std::unique_ptr<AttentionKernel> make_cudnn_attention_within(std::uint64_t most_workspace_bytes) {
  return std::make_unique<CudnnAttention>(most_workspace_bytes);
}

}  // namespace droptest::models
