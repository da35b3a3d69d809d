// SPDX-License-Identifier: Apache-2.0
// A model on the host, with short calls for tests.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"
#include "models/gpt2/gpt2.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/initial_weights.h"
#include "models/ops/host_ops.h"
#include "models/optimizer.h"
#include "tests/models/norm_over_ranks.h"

namespace droptest::models {

/// T is float or double.
template <class T>
class HostGpt2 {
 public:
  HostGpt2(const Gpt2Config& config, comm::Communicator& group, int threads, const ModelPrecision& precision = {},
           const OptimizerConfig& adamw = {})
      : group_(group), model_(config, make_host_ops({comm::element_type_of<T>(), precision, threads}, group), adamw) {}

  const Gpt2Config& config() const { return model_.config(); }
  Gpt2& model() { return model_; }

  void initialize(std::uint64_t seed) {
    set_initial_weights<T>(gpt2_tensors(config(), group_.world_size(), group_.rank()), seed, parameters());
  }
  double evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch, int length) {
    return model_.evaluate(tokens, targets, {batch, length});
  }
  /// The loss of the last pass: exact for the first pass after zero_gradients(), else up to rounding.
  double forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch,
                          int length, double scale) {
    model_.forward_backward(tokens, targets, {batch, length}, scale);
    const double before = losses_;
    losses_ = model_.step_sums().losses;
    return losses_ - before;
  }
  void zero_gradients() {
    model_.zero_gradients();
    losses_ = 0;
  }
  double gradient_norm() { return gradient_norm(group_); }
  double gradient_norm(comm::Communicator& group) {
    return norm_over_ranks(model_.step_sums().gradient_squares, group);
  }
  void step(double learning_rate, double gradient_scale) { model_.step(learning_rate, gradient_scale); }
  /// The parameters with their present values and gradients.
  std::span<Parameter<T>> parameters() {
    model_.download(Gpt2::Fields::kValuesAndGradients);
    return model_.parameters<T>();
  }

 private:
  comm::Communicator& group_;
  Gpt2 model_;
  double losses_ = 0;
};

}  // namespace droptest::models
