// SPDX-License-Identifier: Apache-2.0
// The names and classes of all collectives of a GPT-2's step (docs/models.md has the table).
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "models/gpt2/gpt2_config.h"

namespace droptest::models {

/// Each pair of a class and a name belongs to one call site, because recovery policies remember values by both. The
/// messages borrow their names from this object.
class Gpt2Messages {
 public:
  explicit Gpt2Messages(const Gpt2Config& config) {
    for (int layer = 0; layer < config.layers; ++layer) {
      const std::string h = "h." + std::to_string(layer) + ".";
      layers_.push_back({h + "attn.c_proj", h + "mlp.c_proj", h + "attn.c_attn.backward", h + "mlp.c_fc.backward",
                         h + "ln_1.residual", h + "ln_2.residual", h + "attn.c_attn", h + "mlp.c_fc",
                         h + "attn.c_proj.backward", h + "mlp.c_proj.backward", h + "attn.c_attn.input",
                         h + "mlp.c_fc.input"});
    }
  }

  static comm::Message embedding() { return {sim::TrafficClass::kTpForward, "wte", -1}; }
  comm::Message attention_output(int layer) const { return forward(layer, of(layer).attention_output); }
  comm::Message mlp_output(int layer) const { return forward(layer, of(layer).mlp_output); }
  comm::Message attention_input_gradient(int layer) const { return backward(layer, of(layer).attention_input); }
  comm::Message mlp_input_gradient(int layer) const { return backward(layer, of(layer).mlp_input); }

  /// The gathers if the residual stream is cut by tokens: a sublayer's input in the forward pass; in the backward pass
  /// the gradient of its output, and its input again for the gradients of weights.
  comm::Message attention_input(int layer) const { return forward(layer, of(layer).attention_gather); }
  comm::Message mlp_input(int layer) const { return forward(layer, of(layer).mlp_gather); }
  comm::Message attention_output_gradient(int layer) const {
    return backward(layer, of(layer).attention_output_gradient);
  }
  comm::Message mlp_output_gradient(int layer) const { return backward(layer, of(layer).mlp_output_gradient); }
  comm::Message attention_input_again(int layer) const { return backward(layer, of(layer).attention_input_again); }
  comm::Message mlp_input_again(int layer) const { return backward(layer, of(layer).mlp_input_again); }
  static comm::Message head_input() { return {sim::TrafficClass::kTpForward, "lm_head", -1}; }
  static comm::Message embedding_output_gradient() { return {sim::TrafficClass::kTpBackward, "wte.backward", -1}; }

  /// The sums of a recomputed block, which is sent again (RecomputeTraffic::kSent).
  comm::Message attention_output_again(int layer) const { return again(layer, of(layer).attention_output); }
  comm::Message mlp_output_again(int layer) const { return again(layer, of(layer).mlp_output); }

  /// The gathers of saved residual streams that tensor-parallel ranks have cut.
  comm::Message attention_residual(int layer) const { return control(layer, of(layer).attention_residual); }
  comm::Message mlp_residual(int layer) const { return control(layer, of(layer).mlp_residual); }

  static comm::Message row_maxima() { return {sim::TrafficClass::kControl, "cross_entropy.max", -1}; }
  static comm::Message exponential_sums() { return {sim::TrafficClass::kControl, "cross_entropy.sum_exp", -1}; }
  static comm::Message predicted_logits() { return {sim::TrafficClass::kControl, "cross_entropy.predicted", -1}; }
  static comm::Message losses_and_norms() { return {sim::TrafficClass::kControl, "losses_and_norms", -1}; }
  static comm::Message evaluation_losses() { return {sim::TrafficClass::kControl, "evaluation_losses", -1}; }
  static comm::Message targets() { return {sim::TrafficClass::kControl, "targets", -1}; }
  static comm::Message embedding_gradient() { return {sim::TrafficClass::kEmbeddingGradient, "wte.gradient", -1}; }
  static comm::Message embedding_values() { return {sim::TrafficClass::kEmbeddingGradient, "wte.values", -1}; }
  static comm::Message gradient_squares() { return {sim::TrafficClass::kControl, "gradient_norm", -1}; }
  static comm::Message head_input_gradient() { return {sim::TrafficClass::kTpBackward, "lm_head.backward", -1}; }

 private:
  struct Names {
    std::string attention_output, mlp_output, attention_input, mlp_input, attention_residual, mlp_residual;
    std::string attention_gather, mlp_gather, attention_output_gradient, mlp_output_gradient, attention_input_again,
        mlp_input_again;
  };
  const Names& of(int layer) const { return layers_[static_cast<std::size_t>(layer)]; }
  static comm::Message forward(int layer, const std::string& name) {
    return {sim::TrafficClass::kTpForward, name, layer};
  }
  static comm::Message again(int layer, const std::string& name) {
    return {sim::TrafficClass::kTpRecomputation, name, layer};
  }
  static comm::Message backward(int layer, const std::string& name) {
    return {sim::TrafficClass::kTpBackward, name, layer};
  }
  static comm::Message control(int layer, const std::string& name) {
    return {sim::TrafficClass::kControl, name, layer};
  }

  std::vector<Names> layers_;
};

}  // namespace droptest::models
