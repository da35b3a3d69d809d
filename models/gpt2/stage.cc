// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/stage.h"

#include <string>
#include <string_view>
#include <unordered_map>

#include "models/gpt2/linear_head.h"
#include "sim/error.h"

namespace droptest::models {

Stage::Stage(const Gpt2Config& config, const StageRange& range, ParameterStore& store, Ops& ops,
             const SlotOptions& options, StatefulAttention* attention)
    : config_(config),
      range_(range),
      options_(options),
      store_(store),
      ops_(ops),
      messages_(config),
      boundary_(ops),
      stateful_attention_(attention) {
  DROPTEST_CHECK((attention != nullptr) == config.attention.is_stateful(), "another attention than the config's");
  const StageExtents x = stage_extents(config, range, ops.world_size(), ops.rank(), {});
  if (range.has_embedding()) tokens_ = store.table().number_of("wte.weight");
  if (range.has_embedding()) positions_ = store.table().number_of("wpe.weight");
  std::unordered_map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < store.tensors().size(); ++i) numbers.emplace(store.tensors()[i].name, i);
  for (int layer = range.first; layer < range.end; ++layer) {
    const auto number = [&](const char* tensor) {
      const std::string name = "h." + std::to_string(layer) + "." + tensor;
      const auto found = numbers.find(name);
      return found != numbers.end() ? found->second : store.table().number_of(name);  // which names a missing tensor
    };
    attention_.push_back({number("ln_1.weight"),
                          {number("attn.c_attn.weight"), x.width, 3 * x.attention_width()},
                          {number("attn.c_proj.weight"), x.attention_width(), x.width}});
    mlp_.push_back({number("ln_2.weight"),
                    {number("mlp.c_fc.weight"), x.width, x.hidden},
                    {number("mlp.c_proj.weight"), x.hidden, x.width}});
  }
  if (!range.has_head()) return;
  last_norm_ = store.table().number_of("ln_f.weight");
  const std::size_t outputs = store.table().number_of(config.classifies() ? kClassTensor : "wte.weight");
  head_ = std::make_unique<LinearHead>(ops, weight(outputs), config_.class_weights);
}

void Stage::begin_pass(const StageBuffers& b) {
  rows_ = b.extents.batch.rows();
  own_rows_ = b.extents.cut().own_rows();
}

void Stage::forward(StageBuffers& b, Keep keep, std::span<const std::int32_t> tokens,
                    std::span<const std::int32_t> targets) {
  begin_pass(b);
  is_training_ = keep != Keep::kNothing;
  if (range_.has_embedding()) {
    ops_.take_tokens(tokens, b.tokens);
    if (keep != Keep::kNothing) ops_.group_tokens(tokens, b.extents.vocabulary, b.slot);
  }
  if (range_.has_head()) ops_.take_tokens(targets, b.targets);
  store_.round_values();

  store_.acquire(kOutsideOfBlocks);
  store_.expect(range_.first);
  if (range_.has_embedding()) embed(b);
  std::optional<Pending> pending;
  for (int layer = range_.first; layer < range_.end; ++layer) {
    AttentionBuffers& a = b.attention[index(layer)];
    MlpBuffers& m = b.mlp[index(layer)];
    store_.acquire(layer);
    normalise(attention(layer).norm, a.norm, pending);  // also reads a bias of the previous block
    if (layer > range_.first) store_.release(layer - 1);
    if (layer + 1 < range_.end) store_.expect(layer + 1);
    attention_forward(layer, b);
    pending = {a.norm.residual, a.output, attention(layer).second.bias(),
               residual_dropout(layer, SublayerKind::kAttention, b)};
    normalise(mlp(layer).norm, m.norm, pending);
    mlp_forward(layer, b);
    if (keep != Keep::kNothing) save_residuals(layer, b);
    pending = {m.norm.residual, m.output, mlp(layer).second.bias(), residual_dropout(layer, SublayerKind::kMlp, b)};
  }
  if (range_.has_head()) {
    normalise(last_norm_, b.final_norm, pending);
  } else {
    NormForward sum = norm_behind(pending);
    sum.residual_after = b.output;
    ops_.residual_forward(sum);
  }
  store_.release(range_.end - 1);
  if (keep != Keep::kNothing || !range_.has_head()) store_.release(kOutsideOfBlocks);
}

void Stage::embed(StageBuffers& b) {
  const StageExtents& x = b.extents;
  const comm::Tensor& residual = b.attention.front().norm.residual;
  const comm::Tensor rows_of_all = LayerBoundary::whole_sum(residual, b);
  ops_.embedding_forward(b.tokens, x.vocabulary, weight(tokens_).value, x.width, rows_of_all);
  const comm::Tensor part = LayerBoundary::partial_sums(residual, b);
  if (part.bytes.data() != rows_of_all.bytes.data()) ops_.convert(rows_of_all, part);
  boundary_.begin_sum(residual, b, Gpt2Messages::embedding());
  ops_.join();
  for_positions(b, [&](const PositionRange& range, std::int64_t sequences, std::int64_t row) {
    ops_.add_positions(elements(weight(positions_).value, range.begin * x.width, range.count * x.width), sequences,
                       range.count, x.width, elements(residual, row * x.width, sequences * range.count * x.width));
  });
  if (const DropoutMask mask = embedding_dropout(b); mask.is_on()) {
    ops_.drop_elements(residual, mask, own_rows_, x.width, residual);
  }
}

void Stage::embedding_backward(StageBuffers& b, GradientMode mode) {
  const StageExtents& x = b.extents;
  if (const DropoutMask mask = embedding_dropout(b); mask.is_on()) {
    ops_.drop_elements(b.grad_residual, mask, own_rows_, x.width, b.grad_residual);
  }
  // Positions of other parts of the sequences have no gradient on this rank.
  const comm::Tensor positions = weight(positions_).gradient;
  if (mode == GradientMode::kSet) ops_.zero(positions);
  for_positions(b, [&](const PositionRange& range, std::int64_t sequences, std::int64_t row) {
    ops_.positions_backward(elements(b.grad_residual, row * x.width, sequences * range.count * x.width), sequences,
                            range.count, x.width, elements(positions, range.begin * x.width, range.count * x.width));
  });
  // The head sets the gradient of the tied embedding.
  if (!has_tied_head() && !shares_tokens_ && mode == GradientMode::kSet) ops_.zero(weight(tokens_).gradient);
  const comm::Tensor grad_output =
      boundary_.gather(b.grad_residual, b.gathered_input, b, Gpt2Messages::embedding_output_gradient());
  ops_.embedding_backward(b.tokens, x.vocabulary, b.slot, grad_output, x.width, weight(tokens_).gradient);
}

template <class Body>
void Stage::for_positions(const StageBuffers& b, const Body& body) const {
  const std::vector<PositionRange>& ranges = b.sequences.positions;
  const StageExtents& x = b.extents;
  if (ranges.size() == 1) {
    return for_sequence_parts(
        x.cut().first_row(), own_rows_, x.batch.length,
        [&](std::int64_t row, std::int64_t sequences, std::int64_t position, std::int64_t tokens) {
          body(PositionRange{ranges.front().begin + position, tokens}, sequences, row);
        });
  }
  std::int64_t row = 0;
  for (std::int64_t sequence = 0; sequence < x.batch.batch; ++sequence) {
    for (const PositionRange& range : ranges) {
      body(range, std::int64_t{1}, row);
      row += range.count;
    }
  }
}

NormForward Stage::norm_behind(const std::optional<Pending>& pending) const {
  NormForward n;
  if (pending) {
    n.residual = pending->residual;
    n.branch = pending->output;
    n.branch_bias = weight(pending->bias).value;
    n.dropout = pending->dropout;
  }
  n.rows = own_rows_;
  n.width = config_.width;
  return n;
}

void Stage::normalise(std::size_t norm, NormBuffers& buffers, const std::optional<Pending>& pending) {
  NormForward n = norm_behind(pending);
  if (!pending) n.residual = buffers.residual;
  n.gain = weight(norm).value;
  n.bias = weight(bias_of(norm)).value;
  n.residual_after = buffers.residual;
  n.output = buffers.normalized;
  n.mean = buffers.mean;
  n.inverse_deviation = buffers.inverse_deviation;
  ops_.norm_forward(n);
}

void Stage::partial_sum(const Linear& linear, const comm::Tensor& input, const comm::Tensor& output, StageBuffers& b) {
  ops_.linear_forward(shape_of(linear), ops_.operand(input, 1, b.rounded_input), weight(linear.weight), nullptr,
                      LayerBoundary::partial_sums(output, b));
}

void Stage::sum_over_ranks(const comm::Tensor& output, StageBuffers& b, const comm::Message& about) {
  boundary_.begin_sum(output, b, about);
  ops_.join();
}

void Stage::project_attention(int layer, StageBuffers& b) {
  const Linear& linear = attention(layer).first;
  const AttentionBuffers& a = b.attention[index(layer)];
  const Weight bias = weight(linear.bias());
  ops_.linear_forward(shape_of(linear), ops_.operand(b.shared_input(a.norm), 1, b.rounded_input), weight(linear.weight),
                      &bias, a.qkv);
}

void Stage::attend(int layer, StageBuffers& b) {
  const AttentionBuffers& a = b.attention[index(layer)];
  if (stateful_attention_ == nullptr) {
    return ops_.attention_forward(a.qkv, b.extents.attention(), attention_dropout(layer, b), a.statistics, a.attended,
                                  b.attention_scratch);
  }
  const int slot = is_training_ ? b.slot : AttentionPlace::kEvaluation;
  stateful_attention_->forward({layer, slot, attention_dropout(layer, b)}, b.sequences, b.extents.attention(), a.qkv,
                               a.attended);
}

void Stage::attend_backward(int layer, StageBuffers& b) {
  const AttentionBuffers& a = b.attention[index(layer)];
  if (stateful_attention_ == nullptr) {
    return ops_.attention_backward(b.grad_attended, a.qkv, a.attended, a.statistics, b.extents.attention(),
                                   attention_dropout(layer, b), a.grad_qkv, b.attention_backward_scratch);
  }
  stateful_attention_->backward({layer, b.slot, attention_dropout(layer, b)}, b.sequences, b.extents.attention(),
                                a.attended, b.grad_attended, a.grad_qkv);
}

void Stage::attention_forward(int layer, StageBuffers& b) {
  AttentionBuffers& a = b.attention[index(layer)];
  boundary_.gather_input(a.norm.normalized, b.gathered_input, b, messages_.attention_input(layer), a.lost_input);
  project_attention(layer, b);
  attend(layer, b);
  partial_sum(attention(layer).second, a.attended, a.output, b);
  sum_over_ranks(a.output, b, messages_.attention_output(layer));
}

void Stage::activate_mlp(int layer, StageBuffers& b) {
  const Linear& linear = mlp(layer).first;
  const MlpBuffers& m = b.mlp[index(layer)];
  ops_.gelu_forward(shape_of(linear), ops_.operand(b.shared_input(m.norm), 1, b.rounded_input), weight(linear.weight),
                    weight(linear.bias()), m.gelu_saved, m.activated);
}

void Stage::mlp_forward(int layer, StageBuffers& b) {
  const Sublayer& s = mlp(layer);
  MlpBuffers& m = b.mlp[index(layer)];
  boundary_.gather_input(m.norm.normalized, b.gathered_input, b, messages_.mlp_input(layer), m.lost_input);
  if (m.projection.bytes.empty()) {
    activate_mlp(layer, b);
  } else {
    ops_.linear_forward(shape_of(s.first), ops_.operand(b.shared_input(m.norm), 1, b.rounded_input),
                        weight(s.first.weight), nullptr, m.projection);
    ops_.gelu_of_projection(shape_of(s.first), m.projection, weight(s.first.bias()), m.gelu_saved, m.activated);
  }
  partial_sum(s.second, m.activated, m.output, b);
  sum_over_ranks(m.output, b, messages_.mlp_output(layer));
}

void Stage::evaluate_head(StageBuffers& b, double count_targets, std::span<const std::int32_t> targets,
                          const LogitVisitor& visit) {
  boundary_.gather(b.final_norm.normalized, b.gathered_input, b, Gpt2Messages::head_input());
  head_->forward(b);
  ops_.sum_losses(b.losses, b.chunks.rows, count_targets, GradientMode::kSet, Number::kEvaluation);
  if (visit) head_->for_target_logits(b, targets, visit);
  store_.release(kOutsideOfBlocks);
}

void Stage::backward(StageBuffers& b, double scale, double targets, GradientMode losses_mode, Reports reports) {
  backward_part(b, scale, targets, losses_mode, reports, Part::kWhole);
}

void Stage::backward_inputs(StageBuffers& b, double scale, double targets, GradientMode losses_mode) {
  backward_part(b, scale, targets, losses_mode, Reports::kNothing, Part::kInputs);
}

void Stage::backward_weights(StageBuffers& b, GradientMode mode, Reports reports) {
  begin_pass(b);
  is_training_ = true;
  for (int layer = range_.end - 1; layer >= range_.first; --layer) {
    const MlpBuffers& m = b.mlp[index(layer)];
    if (recompute_of(layer) != Recompute::kSaveAll) store_.acquire(layer);
    bring_residual_back(layer, SublayerKind::kMlp, b);
    mlp_again(layer, b, Part::kWeights);
    mlp_weights(layer, b, mode,
                ops_.operand(branch_gradient_of_weights(layer, SublayerKind::kMlp, b), 1, b.rounded_gradients[0]),
                ops_.operand(m.grad_activated, 1, b.rounded_gradients[1]));
    const AttentionBuffers& a = b.attention[index(layer)];
    bring_residual_back(layer, SublayerKind::kAttention, b);
    attention_again(layer, b, Part::kWeights);
    attention_weights(
        layer, b, mode,
        ops_.operand(branch_gradient_of_weights(layer, SublayerKind::kAttention, b), 1, b.rounded_gradients[0]),
        ops_.operand(a.grad_qkv, 1, b.rounded_gradients[1]));
    if (reports == Reports::kReady) store_.on_gradient_ready(layer);
  }
}

void Stage::backward_part(StageBuffers& b, double scale, double targets, GradientMode losses_mode, Reports reports,
                          Part part) {
  const GradientMode mode = store_.gradient_mode(losses_mode);
  begin_pass(b);
  is_training_ = true;
  const StageExtents& x = b.extents;
  store_.acquire(kOutsideOfBlocks);
  store_.acquire(range_.end - 1);
  expect_residual(range_.end - 1, SublayerKind::kMlp, b);
  expect_residual(range_.end - 1, SublayerKind::kAttention, b);
  // The next norm adds the bias of a row-parallel layer to the residual stream. So the backward pass of that norm also
  // sums the columns of the stream's gradient, which are the bias's gradient. With dropout they are not.
  const auto bias_behind = [this](const Sublayer& sublayer) {
    return drops_residuals() ? std::nullopt : std::optional(sublayer.second.bias());
  };
  const std::optional<std::size_t> last_bias = bias_behind(mlp(range_.end - 1));
  if (range_.has_head()) {
    boundary_.gather_input(b.final_norm.normalized, b.gathered_input, b, Gpt2Messages::head_input(), b.lost_head_input);
    head_->forward_backward(b, scale / targets, mode);
    ops_.sum_losses(b.losses, b.chunks.rows, targets, losses_mode, Number::kLosses);
    normalise_backward(last_norm_, b.final_norm, last_bias, {}, grad_output(b), b, mode);
    if (!b.passed_gradient.bytes.empty()) ops_.convert(grad_output(b), b.passed_gradient);
  } else if (last_bias) {
    NormBackward sum;
    sum.rows = own_rows_;
    sum.width = x.width;
    sum.grad_residual = grad_output(b);
    sum.grad_branch_bias = weight(*last_bias).gradient;
    sum.mode = mode;
    ops_.residual_backward(sum);
  }
  for (int layer = range_.end - 1; layer >= range_.first; --layer) {
    if (layer > range_.first) store_.expect(layer - 1);
    const AttentionBuffers& a = b.attention[index(layer)];
    const MlpBuffers& m = b.mlp[index(layer)];
    bring_residual_back(layer, SublayerKind::kMlp, b);
    mlp_again(layer, b, part);
    mlp_backward(layer, b, mode, part);
    normalise_backward(mlp(layer).norm, m.norm, bias_behind(attention(layer)), m.grad_output, a.grad_output, b, mode);
    bring_residual_back(layer, SublayerKind::kAttention, b);
    attention_again(layer, b, part);
    attention_backward(layer, b, mode, part);
    std::optional<std::size_t> bias_before;
    comm::Tensor grad_before_block = b.grad_residual;
    if (layer > range_.first) {
      store_.acquire(layer - 1);  // this block's pass writes the gradient of one of its biases
      bias_before = bias_behind(mlp(layer - 1));
      grad_before_block = b.mlp[index(layer - 1)].grad_output;
    }
    normalise_backward(attention(layer).norm, a.norm, bias_before, a.grad_output, grad_before_block, b, mode);
    if (reports == Reports::kReady) store_.on_gradient_ready(layer);
    store_.release(layer);
  }
  if (range_.has_embedding()) embedding_backward(b, mode);
  const bool is_whole = range_.has_embedding() && range_.has_head();
  if (is_whole && reports == Reports::kReady) store_.on_gradient_ready(kOutsideOfBlocks);
  store_.release(kOutsideOfBlocks);
}

void Stage::normalise_backward(std::size_t norm, const NormBuffers& norm_buffers,
                               std::optional<std::size_t> branch_bias, const comm::Tensor& grad_before,
                               const comm::Tensor& grad_after, StageBuffers& b, GradientMode mode) {
  ops_.join();
  NormBackward n;
  n.grad_output = b.grad_normalized;
  n.residual_after = norm_buffers.residual;
  n.mean = norm_buffers.mean;
  n.inverse_deviation = norm_buffers.inverse_deviation;
  n.gain = weight(norm).value;
  n.grad_gain = weight(norm).gradient;
  n.grad_bias = weight(bias_of(norm)).gradient;
  n.rows = own_rows_;
  n.width = config_.width;
  n.grad_before = grad_before;
  n.grad_residual = grad_after;
  if (branch_bias) n.grad_branch_bias = weight(*branch_bias).gradient;
  n.mode = mode;
  n.scratch = b.norm_scratch;
  ops_.norm_backward(n);
}

void Stage::begin_input_gradient(const Linear& linear, const Operand& grad_output, StageBuffers& b,
                                 const comm::Message& about, const LostElements& lost) {
  ops_.linear_backward_input(shape_of(linear), grad_output, weight(linear.weight),
                             LayerBoundary::partial_sums(b.grad_normalized, b));
  boundary_.begin_gradient_sum(b.grad_normalized, b, about, lost);
}

void Stage::weight_gradient(const Linear& linear, const comm::Tensor& input, const Operand& grad_output,
                            StageBuffers& b, GradientMode mode, const Weight* bias) {
  ops_.linear_backward_weight(shape_of(linear), ops_.operand(input, 1, b.rounded_input), grad_output, mode,
                              weight(linear.weight), bias);
}

// In both sublayers, the all-reduce of the gradients of the sublayer's input starts as soon as possible and overlaps
// with the gradients of the weights.
void Stage::mlp_backward(int layer, StageBuffers& b, GradientMode mode, Part part) {
  const Sublayer& s = mlp(layer);
  const MlpBuffers& m = b.mlp[index(layer)];
  const Operand grad_output =
      ops_.operand(gathered_branch_gradient(layer, SublayerKind::kMlp, b, mode), 1, b.rounded_gradients[0]);
  ops_.gelu_backward_input(shape_of(s.second), grad_output, weight(s.second.weight), m.gelu_saved, mode,
                           weight(s.first.bias()), m.grad_activated);
  const Operand grad_hidden = ops_.operand(m.grad_activated, 1, b.rounded_gradients[1]);
  begin_input_gradient(s.first, grad_hidden, b, messages_.mlp_input_gradient(layer), m.lost_input);
  if (part == Part::kWhole) mlp_weights(layer, b, mode, grad_output, grad_hidden);
}

void Stage::mlp_weights(int layer, StageBuffers& b, GradientMode mode, const Operand& grad_output,
                        const Operand& grad_hidden) {
  const Sublayer& s = mlp(layer);
  const MlpBuffers& m = b.mlp[index(layer)];
  const Weight bias = weight(s.first.bias());
  weight_gradient(s.second, m.activated, grad_output, b, mode, nullptr);
  weight_gradient(s.first, b.shared_input(m.norm), grad_hidden, b, mode,
                  ops_.form().gelu_sums_bias() ? nullptr : &bias);
}

void Stage::attention_backward(int layer, StageBuffers& b, GradientMode mode, Part part) {
  const Sublayer& s = attention(layer);
  const AttentionBuffers& a = b.attention[index(layer)];
  const Operand grad_output =
      ops_.operand(gathered_branch_gradient(layer, SublayerKind::kAttention, b, mode), 1, b.rounded_gradients[0]);
  ops_.linear_backward_input(shape_of(s.second), grad_output, weight(s.second.weight), b.grad_attended);
  attend_backward(layer, b);
  const Operand grad_qkv = ops_.operand(a.grad_qkv, 1, b.rounded_gradients[1]);
  begin_input_gradient(s.first, grad_qkv, b, messages_.attention_input_gradient(layer), a.lost_input);
  if (part == Part::kWhole) attention_weights(layer, b, mode, grad_output, grad_qkv);
}

void Stage::attention_weights(int layer, StageBuffers& b, GradientMode mode, const Operand& grad_output,
                              const Operand& grad_qkv) {
  const Sublayer& s = attention(layer);
  const AttentionBuffers& a = b.attention[index(layer)];
  const Weight bias = weight(s.first.bias());
  weight_gradient(s.second, a.attended, grad_output, b, mode, nullptr);
  weight_gradient(s.first, b.shared_input(a.norm), grad_qkv, b, mode, &bias);
}

}  // namespace droptest::models
