// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/lora.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "models/gpt2/gpt2_tensors.h"
#include "models/kernels/adapter.h"

namespace droptest::models {

StoredTensors with_merged_adapters(const Gpt2Config& config, const StoredTensors& tensors) {
  StoredTensors merged = tensors;
  const Team alone(1);
  for (const Gpt2Tensor& tensor : gpt2_tensors(config, 1, 0)) {
    if (tensor.adapts.empty()) continue;
    merged.erase(tensor.name);
    if (!tensor.name.ends_with(".lora_A.weight")) continue;
    StoredTensor& base = merged.at(tensor.adapts);
    std::string of_b = tensor.name;
    of_b[of_b.size() - std::string("A.weight").size()] = 'B';
    const std::vector<float> weight = to_floats(base, tensor.adapts);
    std::vector<float> sum(weight.size());
    const AdapterShape shape{static_cast<std::int64_t>(base.shape[0]), static_cast<std::int64_t>(base.shape[1]),
                             static_cast<std::int64_t>(tensor.slice.full_shape[0]), tensor.adapter_scale};
    merge_adapter<float>(shape, weight, to_floats(tensors.at(tensor.name), tensor.name),
                         to_floats(tensors.at(of_b), of_b), sum, alone);
    std::memcpy(base.bytes.data(), sum.data(), base.bytes.size());
  }
  return merged;
}

StoredTensors peft_adapters(const Gpt2Config& config, const StoredTensors& tensors) {
  StoredTensors adapters;
  for (const Gpt2Tensor& tensor : gpt2_tensors(config, 1, 0)) {
    if (tensor.name == kClassTensor) adapters.emplace("base_model.model." + tensor.name, tensors.at(tensor.name));
    if (tensor.adapts.empty()) continue;
    adapters.emplace("base_model.model.transformer." + tensor.name, tensors.at(tensor.name));
  }
  return adapters;
}

std::string peft_config_text(const Gpt2Config& config) {
  const nlohmann::json modules = config.classifies() ? nlohmann::json::array({"score"}) : nlohmann::json();
  return nlohmann::json{{"peft_type", "LORA"},
                        {"task_type", config.classifies() ? "SEQ_CLS" : "CAUSAL_LM"},
                        {"r", config.lora.rank},
                        {"lora_alpha", config.lora.alpha},
                        {"target_modules", config.lora.targets},
                        {"modules_to_save", modules},
                        {"fan_in_fan_out", true},
                        {"bias", "none"},
                        {"lora_dropout", 0.0},
                        {"inference_mode", true},
                        {"base_model_name_or_path", nullptr}}
             .dump(2) +
         "\n";
}

}  // namespace droptest::models
