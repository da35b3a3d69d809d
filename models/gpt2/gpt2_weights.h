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

/// A classification head that the tensors do not have: an error, or it keeps its values. Training starts from models
/// that have none.
enum class MissingHead : std::uint8_t { kRefused, kStays };

/// Loads each rank's part into the values of `parameters`, which are those of gpt2_tensors(config) or of stages; names
/// with or without "transformer." prefix. lm_head.weight, attn.bias and attn.masked_bias are ignored; a lm_head that
/// differs from wte is refused, but by a model with a classification head. Adapters that the tensors do not have stay
/// as they are. Throws: ConfigError that names the tensor, the shape got and the shape wanted, for missing, unknown or
/// misshapen tensors.
void load_gpt2_weights(const Gpt2Config& config, std::span<Parameter<float>> parameters,
                       comm::Communicator& tensor_group, const StoredTensors& tensors, const std::string& where,
                       MissingHead missing = MissingHead::kRefused);

/// Throws: as load_gpt2_weights(), which it is without the loading.
void check_gpt2_weights(const Gpt2Config& config, const StoredTensors& tensors, const std::string& where,
                        MissingHead missing = MissingHead::kRefused);

/// The whole model's weights in F32; complete on rank 0 of both groups, empty on the others. Replicated tensors are
/// rank 0's, and the tied embedding is that of the rank with the LM head. `pipeline`: the ranks with the other stages;
/// null: one rank has all. Ranks: all.
StoredTensors gather_gpt2_weights(const Gpt2Config& config, std::span<const Parameter<float>> parameters,
                                  comm::Communicator& tensor_group, comm::Communicator* pipeline = nullptr);

/// The same tensors by the names of Hugging Face's models with a head: all but the classification head begin with
/// "transformer.".
StoredTensors with_huggingface_names(StoredTensors tensors);

/// The configuration that a file's tensors imply, for `eval` without a spec; heads cannot be told and stay 0.
Gpt2Config gpt2_config_of(const StoredTensors& tensors, const std::string& where);

}  // namespace droptest::models
