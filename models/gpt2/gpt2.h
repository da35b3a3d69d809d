// SPDX-License-Identifier: Apache-2.0
// GPT-2 with tensor parallelism: one rank's part of the model, forward and backward.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "models/gpt2/execution.h"
#include "models/gpt2/gpt2_config.h"
#include "models/parameter.h"

namespace droptest::models {

/// Pre-LN, tanh-GELU, learned positions, tied embeddings, biases; Megatron's tensor parallelism (Shoeybi et al. 2019).
/// T is float, or double for tests. Ranks: all ranks of the tensor-parallel group call the same methods in the same
/// order. Determinism: results depend on the number of ranks, not on the number of threads.
template <class T>
class Gpt2 {
 public:
  /// `tensor_group` is borrowed and outlives the model. `threads`: CPU threads this rank may use, at least 1.
  /// `times`: gets the time of each phase added, where given; it outlives the model.
  /// Throws: ConfigError for bfloat16 where T is double, and for products of it where the processor has no AVX512-BF16.
  Gpt2(const Gpt2Config& config, comm::Communicator& tensor_group, int threads, const ModelPrecision& precision = {},
       PhaseTimes* times = nullptr);
  ~Gpt2();

  const Gpt2Config& config() const;
  /// The threads that this rank computes with, for the optimizer to share.
  const Team& team() const;

  /// GPT-2's initial weights; they do not depend on the tensor-parallel size.
  void initialize(std::uint64_t seed);

  /// Mean cross-entropy in nats per token; the same on every rank of a lossless group.
  /// Shapes: tokens and targets [batch, length], length <= context, each in [0, vocabulary).
  double forward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch, int length);

  /// The same loss, bit for bit, in the memory of one block: nothing is kept, and no backward pass can follow.
  double evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch, int length);

  /// Adds scale x d(loss of the last forward) / d(parameter) to every gradient.
  void backward(double scale);

  /// forward and backward(scale) in one call, which computes the logits of a large vocabulary once, not twice.
  double forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch,
                          int length, double scale);

  /// The next backward pass starts from zeros. The gradients themselves are written then, or when parameters() is
  /// called; until then spans that were taken before show the old ones.
  void zero_gradients();

  /// This rank's parameters in a fixed order, equal on all ranks.
  std::span<Parameter<T>> parameters();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace droptest::models
