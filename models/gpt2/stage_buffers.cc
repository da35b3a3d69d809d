// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/stage_buffers.h"

#include <algorithm>

namespace droptest::models {
namespace {

std::uint64_t elems(std::int64_t rows, std::int64_t columns) { return static_cast<std::uint64_t>(rows * columns); }

}  // namespace

StageExtents stage_extents(const Gpt2Config& config, const StageRange& range, int world_size, int rank,
                           const BatchShape& batch, const SlotOptions& options) {
  const Gpt2Part part = gpt2_part(config, world_size, rank);
  const TokenRange vocabulary{static_cast<std::int64_t>(part.vocabulary.first),
                              static_cast<std::int64_t>(part.vocabulary.count)};
  const auto largest_vocabulary = static_cast<std::int64_t>(part.vocabulary.count + part.vocabulary_padding);
  const TokenRange classes{static_cast<std::int64_t>(part.classes.first),
                           static_cast<std::int64_t>(part.classes.count)};
  const std::int64_t most_classes = (config.classes + world_size - 1) / world_size;
  return {range,
          config.width,
          static_cast<std::int64_t>(part.heads.count),
          static_cast<std::int64_t>(part.heads.first),
          config.width / config.heads,
          static_cast<std::int64_t>(part.hidden.count),
          vocabulary,
          largest_vocabulary,
          config.classifies() ? classes : vocabulary,
          config.classifies() ? most_classes : largest_vocabulary,
          batch,
          rank,
          world_size,
          config.dropout,
          options.tensor_sequence,
          config.attention.is_stateful()};
}

void visit_buffers(StageBuffers& b, const StageExtents& x, const OpsForm& form, Keep keep, const SentPast& sent_past,
                   const SlotOptions& options, BufferVisitor& visitor) {
  const OpsTypes types = form.types();
  const std::int64_t rows = x.batch.rows();
  const std::int64_t own_rows = x.cut().own_rows();
  const bool backward = keep != Keep::kNothing;
  const Lifetime saved = backward ? Lifetime::kSaved : Lifetime::kWorking;
  b.extents = x;
  b.chunks = form.logit_chunks(rows, x.outputs.count, x.largest_outputs);
  b.attention.resize(static_cast<std::size_t>(x.range.count()));
  b.mlp.resize(static_cast<std::size_t>(x.range.count()));

  const auto activations = [&](comm::Tensor& tensor, const char* name, std::int64_t columns, Lifetime lifetime) {
    visitor.tensor(tensor, name, types.activations, elems(rows, columns), lifetime);
  };
  const auto stream = [&](comm::Tensor& tensor, const char* name, Lifetime lifetime) {
    visitor.tensor(tensor, name, types.activations, elems(own_rows, x.width), lifetime);
  };
  const auto statistics = [&](comm::Tensor& tensor, std::uint64_t count, Lifetime lifetime) {
    visitor.tensor(tensor, "row statistics", types.statistics, count, lifetime);
  };
  const auto norm = [&](NormBuffers& n, Lifetime residual, Lifetime result) {
    stream(n.residual, "residual stream", residual);
    stream(n.normalized, "normalised inputs", result);
    statistics(n.mean, elems(own_rows, 1), result);
    statistics(n.inverse_deviation, elems(own_rows, 1), result);
  };
  const auto own_part = [&](comm::Tensor& part, bool is_cut) {
    visitor.tensor(part, "parts of residual streams", types.activations, is_cut ? x.own_part_elems() : 0, saved);
  };

  visitor.tokens(b.tokens, "tokens", elems(rows, 1), saved);
  visitor.tokens(b.targets, "tokens", elems(rows, 1), saved);
  for (std::size_t layer = 0; layer < b.attention.size(); ++layer) {
    const Recompute policy = backward ? options.of(x.range.first + static_cast<int>(layer)) : Recompute::kSaveAll;
    const bool leaves = policy == Recompute::kBlock && options.place.leaves_slot();
    const bool is_cut = leaves && options.place.cut && !options.place.offloaded;
    const Lifetime again = policy == Recompute::kSaveAll ? saved : Lifetime::kWorking;
    const Lifetime projected = policy == Recompute::kBlock ? Lifetime::kWorking : saved;
    AttentionBuffers& a = b.attention[layer];
    const bool is_input = layer == 0;
    norm(a.norm, leaves && !is_input ? Lifetime::kWorking : saved, again);
    // Recomputation does not call a StatefulAttention: its output stays.
    const bool state = x.stateful_attention;
    activations(a.qkv, "queries, keys and values", 3 * x.attention_width(), state ? Lifetime::kWorking : projected);
    statistics(a.statistics, state ? 0 : form.attention_statistics_elems(x.attention()), again);
    activations(a.attended, "attention outputs", x.attention_width(), state ? saved : again);
    stream(a.output, "sublayer outputs", Lifetime::kWorking);
    own_part(a.own_part, is_cut && !is_input);
    MlpBuffers& m = b.mlp[layer];
    norm(m.norm, leaves ? Lifetime::kWorking : saved, again);
    const bool from_projection = policy == Recompute::kSelective && form.gelu_from_projection();
    activations(m.projection, "projections before GELU", from_projection ? x.hidden : 0, saved);
    const bool room = backward || form.gelu_needs_room();
    activations(m.gelu_saved, "saved inputs of GELU", room ? x.hidden : 0, again);
    activations(m.activated, "outputs of GELU", x.hidden, again);
    stream(m.output, "sublayer outputs", Lifetime::kWorking);
    own_part(m.own_part, is_cut);
  }
  // Tensors that stages exchange may be being sent while passes of other slots run.
  const bool head = x.range.has_head();
  if (head) {
    norm(b.final_norm, saved, saved);
  } else {
    stream(b.output, "output of the stage", saved);
  }
  const bool takes_input = sent_past.activations && !x.range.has_embedding();
  const auto sent = [&](comm::Tensor& tensor, const char* name, bool is_sent, Lifetime lifetime) {
    visitor.tensor(tensor, name, types.activations, is_sent ? elems(own_rows, x.width) : 0, lifetime);
  };
  sent(b.passed_input, "activations sent past a stage", takes_input, saved);

  const auto working = [&](comm::Tensor& tensor, const char* name, comm::ElementType type, std::uint64_t count) {
    visitor.tensor(tensor, name, type, count, Lifetime::kWorking);
  };
  working(b.message, "messages", types.messages, types.messages == types.activations ? 0 : elems(rows, x.width));
  const std::uint64_t gathered = x.cuts_tokens() ? elems(rows, x.width) : 0;
  working(b.gathered_input, "gathered tokens", types.activations, gathered);
  working(b.partial_sums, "partial sums", types.activations, gathered);
  if (head) {
    working(b.logits, "logits", types.activations, elems(b.chunks.rows, b.chunks.stride));
    for (comm::Tensor* of_chunk : {&b.largest, &b.sums, &b.predicted}) {
      statistics(*of_chunk, elems(b.chunks.rows, 1), Lifetime::kWorking);
    }
    working(b.losses, "row statistics", types.losses, elems(rows, 1));
  }
  working(b.attention_scratch, "scores of attention", types.activations,
          x.stateful_attention ? 0 : form.attention_forward_scratch_elems(x.attention()));
  const std::int64_t wide = std::max({x.width, x.hidden, 3 * x.attention_width()});
  const bool rounds = types.operands != types.activations;
  working(b.rounded_input, "rounded operands", types.operands, rounds ? elems(rows, wide) : 0);
  if (!backward) return;

  for (comm::Tensor& rounded : b.rounded_gradients) {
    working(rounded, "rounded operands", types.operands,
            rounds ? std::max(elems(rows, wide), elems(b.chunks.rows, b.chunks.stride)) : 0);
  }
  const bool alone = head && x.range.has_embedding();
  stream(b.grad_residual, "gradient of the residual stream", alone ? Lifetime::kWorking : Lifetime::kSaved);
  sent(b.passed_gradient, "gradients sent past a stage", sent_past.gradients, Lifetime::kSaved);
  constexpr const char* kWithin = "gradients within a block";
  const bool split = keep == Keep::kForSplitBackward;
  comm::Tensor shared_qkv;
  comm::Tensor shared_activated;
  comm::Tensor shared_gathered;
  if (!split) {
    working(shared_gathered, kWithin, types.activations, gathered);
    working(shared_qkv, kWithin, types.activations, elems(rows, 3 * x.attention_width()));
    working(shared_activated, kWithin, types.activations, elems(rows, x.hidden));
  }
  for (std::size_t layer = 0; layer < b.attention.size(); ++layer) {
    AttentionBuffers& a = b.attention[layer];
    MlpBuffers& m = b.mlp[layer];
    if (split) {
      stream(a.grad_output, kWithin, Lifetime::kSaved);
      visitor.tensor(a.grad_gathered, kWithin, types.activations, gathered, Lifetime::kSaved);
      activations(a.grad_qkv, kWithin, 3 * x.attention_width(), Lifetime::kSaved);
      stream(m.grad_output, kWithin, Lifetime::kSaved);
      visitor.tensor(m.grad_gathered, kWithin, types.activations, gathered, Lifetime::kSaved);
      activations(m.grad_activated, kWithin, x.hidden, Lifetime::kSaved);
    } else {
      a.grad_output = m.grad_output = b.grad_residual;
      a.grad_gathered = m.grad_gathered = shared_gathered;
      a.grad_qkv = shared_qkv;
      m.grad_activated = shared_activated;
    }
  }
  stream(b.grad_normalized, kWithin, Lifetime::kWorking);
  working(b.grad_branch, kWithin, types.activations, x.dropout.residual > 0 ? elems(own_rows, x.width) : 0);
  working(b.grad_attended, kWithin, types.activations, elems(rows, x.attention_width()));
  statistics(b.norm_scratch, form.norm_scratch_elems(own_rows, x.width), Lifetime::kWorking);
  statistics(b.attention_backward_scratch,
             x.stateful_attention ? 0 : form.attention_backward_scratch_elems(x.attention()), Lifetime::kWorking);
}

}  // namespace droptest::models
