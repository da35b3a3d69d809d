// SPDX-License-Identifier: Apache-2.0
// Trained adapters in the file formats of Hugging Face's PEFT (docs/classification.md).
#pragma once

#include <string>

#include "models/files/safetensors.h"
#include "models/gpt2/gpt2_config.h"

namespace droptest::models {

/// The tensors of an equivalent model without adapters: each adapter is added to its weight. Shapes: all tensors of the
/// config.
StoredTensors with_merged_adapters(const Gpt2Config& config, const StoredTensors& tensors);

/// The adapters, and a classification head, by PEFT's names:
/// "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight".
StoredTensors peft_adapters(const Gpt2Config& config, const StoredTensors& tensors);

/// The text of PEFT's adapter_config.json.
std::string peft_config_text(const Gpt2Config& config);

}  // namespace droptest::models
