// SPDX-License-Identifier: Apache-2.0
// A range of a GPT-2's blocks, with the embeddings and the head where the range has them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/attention/stateful_attention.h"
#include "models/gpt2/gpt2_config.h"
#include "models/gpt2/gpt2_messages.h"
#include "models/gpt2/head.h"
#include "models/gpt2/layer_boundary.h"
#include "models/gpt2/parameter_store.h"
#include "models/gpt2/stage_buffers.h"
#include "models/gpt2/stage_range.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// The explicit forward and backward pass: the one definition of the operations of a GPT-2 and of their order, for
/// every implementation of them. Blocks are pre-LN; linear layers are cut over ranks as in Shoeybi et al. 2019,
/// section 3. A whole model is one stage. Several stages are a chain: the caller copies the output of one to the input
/// of the next, and the gradient of that input back. The token embedding is tied to the LM head: a stage adds the
/// gradients of its own uses to its own wte, and a caller whose chain has wte twice adds up both. Owner: one rank.
/// Ranks: all of the tensor-parallel group make the same calls.
class Stage {
 public:
  /// All are borrowed but `options`, of which the number of slots is not read. The store has at least the tensors of
  /// stage_tensors(). `attention`: not null where the config's is stateful.
  Stage(const Gpt2Config& config, const StageRange& range, ParameterStore& store, Ops& ops,
        const SlotOptions& options = {}, StatefulAttention* attention = nullptr);

  /// The residual stream [own rows, width] before the first block: where the range has no embedding, the caller writes
  /// it before forward().
  static comm::Tensor input(StageBuffers& slot) { return slot.attention.front().norm.residual; }
  /// The residual stream after the last block: where the range has no head, forward() leaves it there.
  static comm::Tensor output(StageBuffers& slot) { return slot.output; }
  /// The gradient of output(): where the range has no head, the caller writes it before backward().
  static comm::Tensor grad_output(StageBuffers& slot) { return slot.mlp.back().grad_output; }
  /// The gradient of input(): where the range has no embedding, backward() leaves it there.
  static comm::Tensor grad_input(StageBuffers& slot) { return slot.grad_residual; }

  /// One micro-batch. Tokens are read by an embedding, targets by a head.
  void forward(StageBuffers& slot, Keep keep, std::span<const std::int32_t> tokens,
               std::span<const std::int32_t> targets);
  /// After forward() of a range with a head: Number::kEvaluation of the operations becomes the mean loss. No backward
  /// pass follows. `visit`, where it is not empty, gets what Head::for_target_logits() has.
  void evaluate_head(StageBuffers& slot, double count_targets, std::span<const std::int32_t> targets,
                     const LogitVisitor& visit);
  /// Which gradients the store is told of as they become ready: those of blocks, and of a whole model those outside of
  /// blocks. Those of other stages may have more than one source.
  enum class Reports : std::uint8_t { kReady, kNothing };
  /// After forward() of that slot, in any order of slots: `scale` x the gradient of the mean loss by all parameters,
  /// set or added, and with a head the mean loss in Number::kLosses. The mean is the sum of the losses by `targets`,
  /// their number or the sum of their weights, which may count those of other micro-batches and ranks. Gradients that
  /// the store reduces after each pass are set.
  void backward(StageBuffers& slot, double scale, double targets, GradientMode mode, Reports reports = Reports::kReady);
  /// The same in two parts, of slots for Keep::kForSplitBackward, with the same bits. The first part leaves the
  /// gradients of the blocks' linear layers to the second; those of the head are in the first.
  void backward_inputs(StageBuffers& slot, double scale, double targets, GradientMode mode);
  void backward_weights(StageBuffers& slot, GradientMode mode, Reports reports);
  /// The gradient of the token embedding is also that of another stage on this rank, which sets it first.
  void share_tokens() { shares_tokens_ = true; }

 private:
  /// What a backward pass computes.
  enum class Part : std::uint8_t { kWhole, kInputs, kWeights };
  /// A linear layer: where its weight is in the store, followed by its bias; and its extents for any rows.
  struct Linear {
    std::size_t weight = 0;
    std::int64_t inputs = 0;
    std::int64_t outputs = 0;
    std::size_t bias() const { return weight + 1; }
  };
  /// Where the bias of a norm is, whose gain is at `norm`.
  static std::size_t bias_of(std::size_t norm) { return norm + 1; }
  /// A sublayer: a norm (gain, then bias), a column-parallel layer, and a row-parallel one.
  struct Sublayer {
    std::size_t norm = 0;
    Linear first, second;
  };
  /// A sublayer's output that the next norm adds to the residual stream, with the bias and the dropout that belong to
  /// it.
  struct Pending {
    comm::Tensor residual, output;
    std::size_t bias = 0;
    DropoutMask dropout{};
  };
  /// The two sublayers of a block.
  enum class SublayerKind : std::uint8_t { kAttention, kMlp };

  ProductShape shape_of(const Linear& linear) const { return {rows_, linear.inputs, linear.outputs}; }
  Weight weight(std::size_t i) const { return store_.weight(i); }
  /// Whether the range has a head whose weights are the token embedding's.
  bool has_tied_head() const { return range_.has_head() && !config_.classifies(); }
  Sublayer& attention(int layer) { return attention_[index(layer)]; }
  Sublayer& mlp(int layer) { return mlp_[index(layer)]; }
  /// Of a block of the range, in arrays.
  std::size_t index(int layer) const { return static_cast<std::size_t>(layer - range_.first); }

  void begin_pass(const StageBuffers& buffers);
  void embed(StageBuffers& buffers);
  void embedding_backward(StageBuffers& buffers, GradientMode mode);
  /// Calls body(positions, sequences, first row of the residual stream) for this rank's rows: `sequences` with one
  /// range of positions, one after the other.
  template <class Body>
  void for_positions(const StageBuffers& buffers, const Body& body) const;
  /// The sum in front of a norm.
  NormForward norm_behind(const std::optional<Pending>& pending) const;
  void normalise(std::size_t norm, NormBuffers& buffers, const std::optional<Pending>& pending);
  void attention_forward(int layer, StageBuffers& buffers);
  void mlp_forward(int layer, StageBuffers& buffers);
  /// Up to the input of the row-parallel layer.
  void project_attention(int layer, StageBuffers& buffers);
  void attend(int layer, StageBuffers& buffers);
  void attend_backward(int layer, StageBuffers& buffers);
  void activate_mlp(int layer, StageBuffers& buffers);
  /// A row-parallel layer: this rank's part of the sum, then the sum over ranks.
  void partial_sum(const Linear& linear, const comm::Tensor& input, const comm::Tensor& output, StageBuffers& buffers);
  void sum_over_ranks(const comm::Tensor& output, StageBuffers& buffers, const comm::Message& about);

  // Dropout: stage_dropout.cc.
  /// Off in an evaluation.
  DropoutMask mask_of(sim::Purpose purpose, double probability, int place, const StageBuffers& buffers) const;
  DropoutMask residual_dropout(int layer, SublayerKind kind, const StageBuffers& buffers) const;
  DropoutMask attention_dropout(int layer, const StageBuffers& buffers) const;
  DropoutMask embedding_dropout(const StageBuffers& buffers) const;
  bool drops_residuals() const { return config_.dropout.residual > 0; }
  /// The gradient of a sublayer output, from that of the residual stream behind it: of this rank's tokens.
  comm::Tensor branch_gradient(int layer, SublayerKind kind, StageBuffers& buffers);
  /// That of all ranks' tokens, with the gradient of the output's bias, where no norm has summed it. It is gathered
  /// once: a pass of weights alone finds it in the slot.
  comm::Tensor gathered_branch_gradient(int layer, SublayerKind kind, StageBuffers& buffers, GradientMode mode);
  comm::Tensor branch_gradient_of_weights(int layer, SublayerKind kind, StageBuffers& buffers);

  // Blocks that are computed again: stage_recompute.cc.
  Recompute recompute_of(int layer) const { return options_.of(layer); }
  /// Whether the residual stream before that sublayer of a block leaves the slot between the passes.
  bool leaves_slot(int layer, SublayerKind kind) const;
  void save_residuals(int layer, StageBuffers& buffers);
  std::uint64_t key_of(int layer, SublayerKind kind, const StageBuffers& buffers) const;
  void bring_residual_back(int layer, SublayerKind kind, StageBuffers& buffers);
  /// Begins to read the residual stream of the next lower block of the kind, if there is one from `layer` on.
  void expect_residual(int layer, SublayerKind kind, const StageBuffers& buffers);
  /// Whether a block sends its sums over ranks again.
  bool sends_again(int layer) const { return options_.sends_again(layer) && ops_.world_size() > 1; }
  /// The activations of a sublayer that the forward pass has not saved, and where tokens are cut the sublayer's input
  /// of all ranks, which gradients of weights read.
  void attention_again(int layer, StageBuffers& buffers, Part part);
  void mlp_again(int layer, StageBuffers& buffers, Part part);

  void backward_part(StageBuffers& buffers, double scale, double targets, GradientMode losses_mode, Reports reports,
                     Part part);
  /// `grad_before`: the gradient so far of the residual stream that was normalised; empty behind the last block.
  /// `grad_after`: the gradient with this norm's part.
  void normalise_backward(std::size_t norm, const NormBuffers& norm_buffers, std::optional<std::size_t> branch_bias,
                          const comm::Tensor& grad_before, const comm::Tensor& grad_after, StageBuffers& buffers,
                          GradientMode mode);
  void attention_backward(int layer, StageBuffers& buffers, GradientMode mode, Part part);
  void mlp_backward(int layer, StageBuffers& buffers, GradientMode mode, Part part);
  void attention_weights(int layer, StageBuffers& buffers, GradientMode mode, const Operand& grad_output,
                         const Operand& grad_qkv);
  void mlp_weights(int layer, StageBuffers& buffers, GradientMode mode, const Operand& grad_output,
                   const Operand& grad_hidden);
  void begin_input_gradient(const Linear& linear, const Operand& grad_output, StageBuffers& buffers,
                            const comm::Message& about, const LostElements& lost);
  void weight_gradient(const Linear& linear, const comm::Tensor& input, const Operand& grad_output,
                       StageBuffers& buffers, GradientMode mode, const Weight* bias);

  Gpt2Config config_;
  StageRange range_;
  SlotOptions options_;
  ParameterStore& store_;
  Ops& ops_;
  Gpt2Messages messages_;
  std::vector<Sublayer> attention_;
  std::vector<Sublayer> mlp_;
  std::size_t tokens_ = 0;     ///< with an embedding
  std::size_t positions_ = 0;  ///< with an embedding
  std::size_t last_norm_ = 0;  ///< with a head
  std::unique_ptr<Head> head_;
  LayerBoundary boundary_;
  StatefulAttention* stateful_attention_;
  std::int64_t rows_ = 0;      ///< of the pass: those of all tensor-parallel ranks, which shared layers compute with
  std::int64_t own_rows_ = 0;  ///< of the residual stream here
  bool is_training_ = false;   ///< the pass
  bool shares_tokens_ = false;
};

}  // namespace droptest::models
