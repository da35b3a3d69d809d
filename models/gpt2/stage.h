// SPDX-License-Identifier: Apache-2.0
// A range of a GPT-2's blocks, with the embeddings before and the head behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/gpt2/gpt2_config.h"
#include "models/gpt2/gpt2_messages.h"
#include "models/gpt2/head.h"
#include "models/gpt2/parameter_store.h"
#include "models/gpt2/stage_buffers.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// The explicit forward and backward pass: the one place that says which operations a GPT-2 is, in which order, for
/// every implementation of them. Blocks are pre-LN; linear layers are cut over ranks as in Shoeybi et al. 2019,
/// section 3. Owner: one rank. Ranks: all of the tensor-parallel group make the same calls.
class Stage {
 public:
  /// All are borrowed. The store has the tensors of gpt2_tensors().
  Stage(const Gpt2Config& config, ParameterStore& store, Ops& ops);

  /// Leaves the normalised residual stream of the last block in buffers.final_norm.
  void forward(StageBuffers& buffers, Keep keep, std::span<const std::int32_t> tokens,
               std::span<const std::int32_t> targets);
  /// After forward(): Number::kEvaluation of the operations becomes the mean loss. No backward pass follows.
  void evaluate_head(StageBuffers& buffers);
  /// After forward(): the mean loss in Number::kLosses, and `scale` x its gradient by all parameters, set or added.
  void backward(StageBuffers& buffers, double scale, GradientMode mode);

 private:
  /// A linear layer: where its weight is in the store, followed by its bias; and its extents for any rows.
  struct Linear {
    std::size_t weight = 0;
    std::int64_t inputs = 0;
    std::int64_t outputs = 0;
  };
  /// A sublayer: a norm (gain, then bias), a column-parallel layer, and a row-parallel one.
  struct Sublayer {
    std::size_t norm = 0;
    Linear first, second;
  };
  /// A sublayer's output that the next norm adds to the residual stream, with the bias that belongs to it.
  struct Pending {
    comm::Tensor residual, output;
    std::size_t bias = 0;
  };

  ProductShape shape_of(const Linear& linear) const { return {rows_, linear.inputs, linear.outputs}; }
  Weight weight(std::size_t i) const { return store_.weight(i); }
  std::size_t last_norm() const { return store_.tensors().size() - 2; }

  void embed(StageBuffers& buffers);
  void normalise(std::size_t norm, NormBuffers& buffers, const std::optional<Pending>& pending);
  void attention_forward(int layer, StageBuffers& buffers);
  void mlp_forward(int layer, StageBuffers& buffers);
  void row_parallel_forward(const Linear& linear, const comm::Tensor& input, const comm::Tensor& output,
                            StageBuffers& buffers, const comm::Message& about);

  /// `grad_residual`: the gradient so far of the stream that was normalised; empty behind the last block.
  void normalise_backward(std::size_t norm, const NormBuffers& norm_buffers, std::optional<std::size_t> branch_bias,
                          const comm::Tensor& grad_residual, StageBuffers& buffers, GradientMode mode);
  void attention_backward(int layer, StageBuffers& buffers, GradientMode mode);
  void mlp_backward(int layer, StageBuffers& buffers, GradientMode mode);
  void begin_input_gradient(const Linear& linear, const Operand& grad_output, StageBuffers& buffers,
                            const comm::Message& about);
  void weight_gradient(const Linear& linear, const comm::Tensor& input, const Operand& grad_output,
                       StageBuffers& buffers, GradientMode mode, const Weight* bias);

  Gpt2Config config_;
  ParameterStore& store_;
  Ops& ops_;
  Gpt2Messages messages_;
  std::vector<Sublayer> attention_;
  std::vector<Sublayer> mlp_;
  std::unique_ptr<Head> head_;
  std::int64_t rows_ = 0;  ///< of the pass
};

}  // namespace droptest::models
