// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "models/gpt2/gpt2_tensors.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kTokens = kTiedTensor;
constexpr std::string_view kPositions = "wpe.weight";
constexpr const char* kLastNorm = "ln_f.weight";

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

using TensorsByName = std::map<std::string, const StoredTensor*, std::less<>>;

/// The tensors of a file, by the names that this model uses.
TensorsByName by_plain_name(const StoredTensors& tensors, const std::string& where) {
  TensorsByName plain;
  for (const auto& item : tensors) {
    const std::string name = item.first.starts_with(kPrefix) ? item.first.substr(kPrefix.size()) : item.first;
    if (!plain.emplace(name, &item.second).second) {
      throw ConfigError(where + ": tensor \"" + name + "\" is there with and without \"" + std::string(kPrefix) + "\"");
    }
  }
  return plain;
}

/// Constant masks that old checkpoints carry in each block.
bool is_mask_buffer(std::string_view name) {
  return name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

StoredTensor stored_floats(std::vector<std::uint64_t> shape, std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return {"F32", std::move(shape), {bytes.begin(), bytes.end()}};
}

void require_finite(const StoredTensor& tensor, const std::string& name, const std::string& where) {
  const std::vector<float> values = to_floats(tensor, name);
  const auto odd = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (odd == values.end()) return;
  throw ConfigError(where + ": tensor \"" + name + "\": element " + std::to_string(odd - values.begin()) + ": got " +
                    (std::isnan(*odd) ? "NaN" : "an infinite number") + ", want finite numbers");
}

/// The model's tensors in the file, by names without prefix.
TensorsByName checked(const Gpt2Config& config, const StoredTensors& tensors, const std::string& where,
                      MissingHead missing) {
  TensorsByName found = by_plain_name(tensors, where);
  std::set<std::string, std::less<>> known;
  for (const Gpt2Tensor& tensor : gpt2_tensors(config, 1, 0)) {
    known.insert(tensor.name);
    const auto stored = found.find(tensor.name);
    if (stored == found.end()) {
      const bool is_head = tensor.name == kClassTensor;
      if (!tensor.adapts.empty() || (is_head && missing == MissingHead::kStays)) continue;
      throw ConfigError(where + ": tensor \"" + tensor.name + "\" is missing, want shape " +
                        shape_text(tensor.slice.full_shape) +
                        (is_head ? ", of a model that was trained to classify" : ""));
    }
    if (stored->second->shape != tensor.slice.full_shape) {
      throw ConfigError(where + ": tensor \"" + tensor.name + "\": got shape " + shape_text(stored->second->shape) +
                        ", want " + shape_text(tensor.slice.full_shape));
    }
    require_finite(*stored->second, tensor.name, where);
  }
  for (const auto& item : found) {
    if (item.first == kClassTensor && !config.classifies()) {
      throw ConfigError(where + ": tensor \"" + item.first +
                        "\" is of a classification head; want a model with an LM head, or task \"classification\"");
    }
    if (!known.contains(item.first) && item.first != kHead && !is_mask_buffer(item.first)) {
      throw ConfigError(where + ": tensor \"" + item.first + "\" is none of a GPT-2 with " +
                        std::to_string(config.layers) + " layers");
    }
  }
  const auto head = found.find(kHead);
  if (head != found.end() && !config.classifies()) {
    const StoredTensor& wte = *found.find(kTokens)->second;
    if (head->second->shape != wte.shape ||
        to_floats(*head->second, std::string(kHead)) != to_floats(wte, std::string(kTokens))) {
      throw ConfigError(where + ": tensor \"lm_head.weight\" differs from \"wte.weight\"; want tied embeddings");
    }
  }
  return found;
}

/// The tensors of the rank's stages.
StoredTensors gather_stage_weights(const Gpt2Config& config, std::span<const Parameter<float>> parameters,
                                   comm::Communicator& tensor_group) {
  const int ranks = tensor_group.world_size();
  const bool is_root = tensor_group.rank() == 0;
  std::vector<std::vector<Gpt2Tensor>> parts;
  for (int rank = 0; is_root && rank < ranks; ++rank) parts.push_back(gpt2_tensors(config, ranks, rank));

  StoredTensors tensors;
  for (const Parameter<float>& parameter : parameters) {
    const std::vector<float> own(parameter.value.begin(), parameter.value.end());
    const comm::Message message{sim::TrafficClass::kControl, parameter.name, -1};
    if (!is_root) {
      if (parameter.placement == Placement::kSharded) {
        tensor_group.send(std::span<const float>(own), 0, message);
      }
      continue;
    }
    const auto i =
        static_cast<std::size_t>(std::ranges::find(parts[0], parameter.name, &Gpt2Tensor::name) - parts[0].begin());
    std::vector<float> full(parts[0][i].slice.full_elems());
    const int holders = parameter.placement == Placement::kSharded ? ranks : 1;
    for (int rank = 0; rank < holders; ++rank) {
      const TensorSlice& slice = parts[rank][i].slice;
      std::vector<float> received;
      if (rank != 0) {
        received.resize(slice.local_elems());
        tensor_group.recv(std::span<float>(received), rank, message);
      }
      const std::vector<float>& part = rank == 0 ? own : received;
      slice.for_each_run([&](std::uint64_t to, std::uint64_t from, std::uint64_t count) {
        std::copy_n(part.data() + from, count, full.data() + to);
      });
    }
    tensors.emplace(parameter.name, stored_floats(parts[0][i].slice.full_shape, full));
  }
  return tensors;
}

/// Gathers one flag of each rank.
std::vector<std::uint64_t> who_holds(bool holds, comm::Communicator& group) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.world_size()));
  const std::uint64_t own = holds ? 1 : 0;
  group.all_gather(std::span<const std::uint64_t>(&own, 1), std::span<std::uint64_t>(all),
                   std::vector<std::uint64_t>(all.size(), 1), {sim::TrafficClass::kControl, "holders of weights", -1});
  return all;
}

}  // namespace

void check_gpt2_weights(const Gpt2Config& config, const StoredTensors& tensors, const std::string& where,
                        MissingHead missing) {
  (void)checked(config, tensors, where, missing);
}

void load_gpt2_weights(const Gpt2Config& config, std::span<Parameter<float>> parameters,
                       comm::Communicator& tensor_group, const StoredTensors& tensors, const std::string& where,
                       MissingHead missing) {
  const TensorsByName found = checked(config, tensors, where, missing);
  const std::vector<Gpt2Tensor> wanted = gpt2_tensors(config, tensor_group.world_size(), tensor_group.rank());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto parameter = std::ranges::find(parameters, wanted[i].name, &Parameter<float>::name);
    if (parameter == parameters.end()) continue;  // a tensor of another stage
    const auto stored = found.find(wanted[i].name);
    if (stored == found.end()) continue;  // a head or an adapter that the file does not have
    const std::vector<float> full = to_floats(*stored->second, wanted[i].name);
    const std::span<float> value = parameter->value;
    std::fill(value.begin(), value.end(), 0.0F);
    wanted[i].slice.for_each_run([&](std::uint64_t from, std::uint64_t to, std::uint64_t count) {
      std::copy_n(full.data() + from, count, value.data() + to);
    });
  }
}

StoredTensors gather_gpt2_weights(const Gpt2Config& config, std::span<const Parameter<float>> parameters,
                                  comm::Communicator& tensor_group, comm::Communicator* pipeline) {
  StoredTensors tensors = gather_stage_weights(config, parameters, tensor_group);
  if (pipeline == nullptr || tensor_group.rank() != 0) return tensors;
  const comm::Message message{sim::TrafficClass::kControl, "weights of a stage", -1};
  // The rank with the last norm has the LM head, and so owns the tied embedding.
  const bool has_copy = !config.classifies() && !tensors.contains(kLastNorm);
  // All ranks know the list.
  for (const Gpt2Tensor& tensor : gpt2_tensors(config, 1, 0)) {
    const bool holds = tensors.contains(tensor.name) && !(has_copy && tensor.name == kTokens);
    const std::vector<std::uint64_t> holders = who_holds(holds, *pipeline);
    const auto holder = static_cast<int>(std::find(holders.begin(), holders.end(), 1) - holders.begin());
    if (holder == 0) continue;
    std::vector<float> values(tensor.slice.full_elems());
    if (pipeline->rank() == holder) {
      values = to_floats(tensors.at(tensor.name), tensor.name);
      pipeline->send(std::span<const float>(values), 0, message);
    } else if (pipeline->rank() == 0) {
      pipeline->recv(std::span<float>(values), holder, message);
      tensors.insert_or_assign(tensor.name, stored_floats(tensor.slice.full_shape, values));
    }
  }
  if (pipeline->rank() != 0) tensors.clear();
  return tensors;
}

StoredTensors with_huggingface_names(StoredTensors tensors) {
  StoredTensors renamed;
  for (auto& [name, tensor] : tensors) {
    renamed.emplace(name == kClassTensor ? name : std::string(kPrefix) + name, std::move(tensor));
  }
  return renamed;
}

Gpt2Config gpt2_config_of(const StoredTensors& tensors, const std::string& where) {
  const auto found = by_plain_name(tensors, where);
  const auto matrix = [&](std::string_view name) -> const std::vector<std::uint64_t>& {
    const auto item = found.find(name);
    if (item == found.end()) throw ConfigError(where + ": tensor \"" + std::string(name) + "\" is missing");
    const std::vector<std::uint64_t>& shape = item->second->shape;
    if (shape.size() != 2 || std::max(shape[0], shape[1]) > std::numeric_limits<int>::max()) {
      throw ConfigError(where + ": tensor \"" + std::string(name) + "\": got shape " + shape_text(shape) +
                        ", want a matrix");
    }
    return shape;
  };
  const std::vector<std::uint64_t>& wte = matrix(kTokens);
  const std::vector<std::uint64_t>& wpe = matrix(kPositions);
  if (wte[1] != wpe[1]) {
    throw ConfigError(where + ": wte.weight " + shape_text(wte) + " and wpe.weight " + shape_text(wpe) +
                      " differ in width");
  }
  Gpt2Config config;
  config.vocabulary = static_cast<int>(wte[0]);
  config.width = static_cast<int>(wte[1]);
  config.context = static_cast<int>(wpe[0]);
  config.heads = 0;
  config.layers = 0;
  while (found.contains("h." + std::to_string(config.layers) + ".ln_1.weight")) ++config.layers;
  if (config.layers == 0) throw ConfigError(where + ": tensor \"h.0.ln_1.weight\" is missing");
  return config;
}

}  // namespace droptest::models
