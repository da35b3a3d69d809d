// SPDX-License-Identifier: Apache-2.0
// GPT-2 weights to and from safetensors, with Hugging Face's names and Conv1D layout.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "models/files/safetensors.h"
#include "models/gpt2/gpt2_config.h"
#include "models/parameter.h"

namespace droptest::models {

/// The handling of tensors without a classification head: kRefused is an error; kStays leaves the values of the head as
/// they are, for training that starts from a model without one.
enum class MissingHead : std::uint8_t { kRefused, kStays };

/// Loads each rank's part into the values of `parameters`, the parameters of the whole model or of stages. Names may
/// have the prefix "transformer.". lm_head.weight, attn.bias and attn.masked_bias are ignored, but a lm_head that
/// differs from wte is an error unless the model has a classification head. Adapters that the tensors do not have stay
/// as they are. Throws: ConfigError that names the tensor and both shapes for missing, unknown or misshapen tensors,
/// and for elements that are not finite.
void load_gpt2_weights(const Gpt2Config& config, std::span<Parameter<float>> parameters,
                       comm::Communicator& tensor_group, const StoredTensors& tensors, const std::string& where,
                       MissingHead missing = MissingHead::kRefused);

/// The checks of load_gpt2_weights() without loading. Throws: as there.
void check_gpt2_weights(const Gpt2Config& config, const StoredTensors& tensors, const std::string& where,
                        MissingHead missing = MissingHead::kRefused);

/// The whole model's weights in F32, on rank 0 of both groups; empty on the other ranks. Replicated tensors are those
/// of rank 0, and the tied embedding is that of the rank with the LM head. `pipeline` has the ranks with the other
/// stages; null: one rank has all stages. Ranks: all.
StoredTensors gather_gpt2_weights(const Gpt2Config& config, std::span<const Parameter<float>> parameters,
                                  comm::Communicator& tensor_group, comm::Communicator* pipeline = nullptr);

/// The tensors with the names of Hugging Face's models with a head: all names except the classification head's begin
/// with "transformer.".
StoredTensors with_huggingface_names(StoredTensors tensors);

/// The configuration that a file's tensors imply, for `eval` without a spec. The number of heads is not in the tensors
/// and stays 0.
Gpt2Config gpt2_config_of(const StoredTensors& tensors, const std::string& where);

}  // namespace droptest::models
