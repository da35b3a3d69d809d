// SPDX-License-Identifier: Apache-2.0
// A range of a GPT-2's blocks, with the embeddings and the head if they belong to the range.
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

/// The explicit forward and backward pass. It is the only definition of a GPT-2's operations and their order, for every
/// implementation of the operations. Blocks are pre-LN; linear layers are cut over ranks as in Shoeybi et al. 2019,
/// section 3. A whole model is one stage. Several stages are a chain: the caller copies the output of one stage to the
/// input of the next, and the gradient of that input back. The token embedding is tied to the LM head. Each stage adds
/// the gradients of its own uses to its own wte; if two stages have wte, the caller adds up both gradients. Owner: one
/// rank. Ranks: all of the tensor-parallel group make the same calls.
class Stage {
 public:
  /// `store`, `ops` and `attention` are borrowed. The number of slots in `options` is not read. The store has at least
  /// the tensors of stage_tensors(). `attention` is not null if the attention of the config is stateful.
  Stage(const Gpt2Config& config, const StageRange& range, ParameterStore& store, Ops& ops,
        const SlotOptions& options = {}, StatefulAttention* attention = nullptr);

  /// The residual stream [own rows, width] before the first block. If the range has no embedding, the caller writes it
  /// before forward().
  static comm::Tensor input(StageBuffers& slot) { return slot.attention.front().norm.residual; }
  /// The residual stream after the last block. If the range has no head, forward() writes it.
  static comm::Tensor output(StageBuffers& slot) { return slot.output; }
  /// The gradient of output(). If the range has no head, the caller writes it before backward().
  static comm::Tensor grad_output(StageBuffers& slot) { return slot.mlp.back().grad_output; }
  /// The gradient of input(). If the range has no embedding, backward() writes it.
  static comm::Tensor grad_input(StageBuffers& slot) { return slot.grad_residual; }

  /// The forward pass of one micro-batch. The embedding reads the tokens, the head the targets.
  void forward(StageBuffers& slot, Keep keep, std::span<const std::int32_t> tokens,
               std::span<const std::int32_t> targets);
  /// Sets Number::kEvaluation of the operations to the mean loss, after forward() of a range with a head. No backward
  /// pass may follow. If `visit` is not empty, it is called as in Head::for_target_logits().
  void evaluate_head(StageBuffers& slot, double count_targets, std::span<const std::int32_t> targets,
                     const LogitVisitor& visit);
  /// Whether backward() tells the store which gradients are ready. kReady reports those of blocks, and in a whole model
  /// also those outside of blocks. In a pipeline, the gradient of tied embeddings comes from two stages, so the caller
  /// reports the tensors outside of blocks.
  enum class Reports : std::uint8_t { kReady, kNothing };
  /// The backward pass, after forward() of that slot; slots may have any order. Sets or adds `scale` x the gradients of
  /// the mean loss with respect to all parameters. A head also updates the mean loss in Number::kLosses. The mean is
  /// the sum of the losses divided by `targets`, the number of targets or the sum of their weights, which may include
  /// other micro-batches and ranks. If the store reduces gradients after each pass, they are always set.
  void backward(StageBuffers& slot, double scale, double targets, GradientMode mode, Reports reports = Reports::kReady);
  /// backward() in two parts, for slots with Keep::kForSplitBackward, with the same bits. The second part computes the
  /// gradients of the weights of the blocks' linear layers; those of the head are in the first part.
  void backward_inputs(StageBuffers& slot, double scale, double targets, GradientMode mode);
  void backward_weights(StageBuffers& slot, GradientMode mode, Reports reports);
  /// Says that another stage on this rank has the same token embedding and sets its gradient first.
  void share_tokens() { shares_tokens_ = true; }

 private:
  /// The part of a backward pass that is computed.
  enum class Part : std::uint8_t { kWhole, kInputs, kWeights };
  /// A linear layer: the number of its weight in the store, and its extents. Its bias has the next number.
  struct Linear {
    std::size_t weight = 0;
    std::int64_t inputs = 0;
    std::int64_t outputs = 0;
    std::size_t bias() const { return weight + 1; }
  };
  /// The number of the bias of a norm with the gain `norm`.
  static std::size_t bias_of(std::size_t norm) { return norm + 1; }
  /// A sublayer: a norm (gain, then bias), a column-parallel layer, and a row-parallel one.
  struct Sublayer {
    std::size_t norm = 0;
    Linear first, second;
  };
  /// A sublayer output, with its bias and dropout, that the next norm adds to the residual stream.
  struct Pending {
    comm::Tensor residual, output;
    std::size_t bias = 0;
    DropoutMask dropout{};
  };
  /// The two sublayers of a block.
  enum class SublayerKind : std::uint8_t { kAttention, kMlp };

  ProductShape shape_of(const Linear& linear) const { return {rows_, linear.inputs, linear.outputs}; }
  Weight weight(std::size_t i) const { return store_.weight(i); }
  /// Whether the range has an LM head, which shares the weights of the token embedding.
  bool has_tied_head() const { return range_.has_head() && !config_.classifies(); }
  Sublayer& attention(int layer) { return attention_[index(layer)]; }
  Sublayer& mlp(int layer) { return mlp_[index(layer)]; }
  /// The index of a block within the range.
  std::size_t index(int layer) const { return static_cast<std::size_t>(layer - range_.first); }

  void begin_pass(const StageBuffers& buffers);
  void embed(StageBuffers& buffers);
  void embedding_backward(StageBuffers& buffers, GradientMode mode);
  /// Calls body(positions, sequences, first row of the residual stream) for parts of this rank's rows. In each part,
  /// `sequences` successive sequences have the same range of positions.
  template <class Body>
  void for_positions(const StageBuffers& buffers, const Body& body) const;
  /// The arguments of the residual sum before a norm.
  NormForward norm_behind(const std::optional<Pending>& pending) const;
  void normalise(std::size_t norm, NormBuffers& buffers, const std::optional<Pending>& pending);
  void attention_forward(int layer, StageBuffers& buffers);
  void mlp_forward(int layer, StageBuffers& buffers);
  /// The operations of a sublayer before its row-parallel layer, and the backward pass of attend().
  void project_attention(int layer, StageBuffers& buffers);
  void attend(int layer, StageBuffers& buffers);
  void attend_backward(int layer, StageBuffers& buffers);
  void activate_mlp(int layer, StageBuffers& buffers);
  /// A row-parallel layer: this rank's part of the sum, then the sum over ranks.
  void partial_sum(const Linear& linear, const comm::Tensor& input, const comm::Tensor& output, StageBuffers& buffers);
  void sum_over_ranks(const comm::Tensor& output, StageBuffers& buffers, const comm::Message& about);

  // Dropout: stage_dropout.cc.
  /// The dropout mask of a tensor; off in an evaluation.
  DropoutMask mask_of(sim::Purpose purpose, double probability, int place, const StageBuffers& buffers) const;
  DropoutMask residual_dropout(int layer, SublayerKind kind, const StageBuffers& buffers) const;
  DropoutMask attention_dropout(int layer, const StageBuffers& buffers) const;
  DropoutMask embedding_dropout(const StageBuffers& buffers) const;
  bool drops_residuals() const { return config_.dropout.residual > 0; }
  /// The gradient of a sublayer output for this rank's tokens, from the gradient of the residual stream after the
  /// sublayer.
  comm::Tensor branch_gradient(int layer, SublayerKind kind, StageBuffers& buffers);
  /// branch_gradient() for the tokens of all ranks. It also computes the gradient of the output's bias, unless a norm
  /// has summed it. It is gathered only once: the second part of a split backward pass finds it in the slot.
  comm::Tensor gathered_branch_gradient(int layer, SublayerKind kind, StageBuffers& buffers, GradientMode mode);
  comm::Tensor branch_gradient_of_weights(int layer, SublayerKind kind, StageBuffers& buffers);

  // Recomputed blocks: stage_recompute.cc.
  Recompute recompute_of(int layer) const { return options_.of(layer); }
  /// Whether the residual stream before that sublayer of a block is cut or offloaded between the passes.
  bool leaves_slot(int layer, SublayerKind kind) const;
  void save_residuals(int layer, StageBuffers& buffers);
  std::uint64_t key_of(int layer, SublayerKind kind, const StageBuffers& buffers) const;
  void bring_residual_back(int layer, SublayerKind kind, StageBuffers& buffers);
  /// Begins to read the residual stream of the next block that leaves_slot(), from `layer` downwards, if there is one.
  void expect_residual(int layer, SublayerKind kind, const StageBuffers& buffers);
  /// Whether a block sends its sums over ranks again.
  bool sends_again(int layer) const { return options_.sends_again(layer) && ops_.world_size() > 1; }
  /// Recomputes the activations of a sublayer that the forward pass has not saved. If tokens are cut, it also gathers
  /// the sublayer's input of all ranks, which gradients of weights read.
  void attention_again(int layer, StageBuffers& buffers, Part part);
  void mlp_again(int layer, StageBuffers& buffers, Part part);

  void backward_part(StageBuffers& buffers, double scale, double targets, GradientMode losses_mode, Reports reports,
                     Part part);
  /// `grad_before` is the gradient so far of the residual stream before the norm; empty for the last norm. `grad_after`
  /// gets its sum with the gradient through the norm.
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
  std::size_t tokens_ = 0;     ///< number of wte, if the range has the embedding
  std::size_t positions_ = 0;  ///< number of wpe, if the range has the embedding
  std::size_t last_norm_ = 0;  ///< number of ln_f's gain, if the range has the head
  std::unique_ptr<Head> head_;
  LayerBoundary boundary_;
  StatefulAttention* stateful_attention_;
  std::int64_t rows_ = 0;      ///< rows of the pass on all tensor-parallel ranks
  std::int64_t own_rows_ = 0;  ///< rows of the residual stream on this rank
  bool is_training_ = false;   ///< whether the pass is a training pass
  bool shares_tokens_ = false;
};

}  // namespace droptest::models
