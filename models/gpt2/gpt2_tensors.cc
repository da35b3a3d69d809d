// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2_tensors.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace droptest::models {
namespace {

// GPT-2's initial deviations. Source: Radford et al. 2019, section 2.3; Hugging Face's initializer_range.
constexpr double kInitialDeviation = 0.02;

constexpr std::size_t kOfBlock = 12;  ///< number of tensors in a block

TensorSlice sliced(std::vector<std::uint64_t> shape, std::size_t axis, std::vector<IndexRange> ranges) {
  TensorSlice slice;
  slice.full_shape = std::move(shape);
  slice.axis = axis;
  slice.ranges = std::move(ranges);
  return slice;
}

Gpt2Tensor matrix(std::string name, TensorSlice slice, double deviation) {
  Gpt2Tensor tensor{std::move(name), "matrix", std::move(slice)};
  tensor.placement = Placement::kSharded;
  tensor.decay = Decay::kDecays;
  tensor.initial_deviation = deviation;
  return tensor;
}

Gpt2Tensor sharded_bias(std::string name, TensorSlice slice) {
  Gpt2Tensor tensor{std::move(name), "bias", std::move(slice)};
  tensor.placement = Placement::kSharded;
  return tensor;
}

Gpt2Tensor replicated(std::string name, std::string group, std::uint64_t width, double constant) {
  Gpt2Tensor tensor{std::move(name), std::move(group), TensorSlice::whole({width})};
  tensor.initial_constant = constant;
  return tensor;
}

/// An adapter's parts follow those of its weight: columns of outputs are rows of B, rows of inputs are columns of A.
void append_adapters(const Gpt2Config& config, std::vector<Gpt2Tensor>& tensors) {
  const auto rank = static_cast<std::uint64_t>(config.lora.rank);
  for (Gpt2Tensor& tensor : tensors) {
    if (tensor.name != kClassTensor) tensor.learning_rate_factor = 0;
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const std::string& target : config.lora.targets) {
      const std::string name = "h." + std::to_string(layer) + "." + target;
      const Gpt2Tensor base = *std::ranges::find(tensors, name + ".weight", &Gpt2Tensor::name);
      const std::uint64_t inputs = base.slice.full_shape[0];
      const bool by_columns = base.slice.axis == 1;
      // PEFT draws A uniformly with this deviation, and B is zero.
      Gpt2Tensor a =
          matrix(name + ".lora_A.weight",
                 by_columns ? TensorSlice::whole({rank, inputs}) : sliced({rank, inputs}, 1, base.slice.ranges),
                 1 / std::sqrt(3.0 * static_cast<double>(inputs)));
      a.placement = by_columns ? Placement::kReplicated : Placement::kSharded;
      const std::vector<std::uint64_t> shape = {base.slice.full_shape[1], rank};
      Gpt2Tensor b = matrix(name + ".lora_B.weight",
                            by_columns ? sliced(shape, 0, base.slice.ranges) : TensorSlice::whole(shape), 0);
      b.placement = by_columns ? Placement::kSharded : Placement::kReplicated;
      for (Gpt2Tensor* adapter : {&a, &b}) {
        adapter->layer = layer;
        adapter->adapts = base.name;
        adapter->adapter_scale = config.lora.scale();
      }
      tensors.push_back(std::move(a));
      tensors.push_back(std::move(b));
    }
  }
}

}  // namespace

Gpt2Part gpt2_part(const Gpt2Config& config, int ranks, int rank) {
  Gpt2Part part;
  part.heads = dealt_range(static_cast<std::uint64_t>(config.heads), ranks, rank);
  part.hidden = dealt_range(4 * static_cast<std::uint64_t>(config.width), ranks, rank);
  const auto vocabulary = static_cast<std::uint64_t>(config.vocabulary);
  const auto group = static_cast<std::uint64_t>(ranks);
  const IndexRange padded = dealt_range((vocabulary + group - 1) / group * group, ranks, rank);
  const std::uint64_t end = std::min(padded.first + padded.count, vocabulary);
  part.vocabulary = {padded.first, end > padded.first ? end - padded.first : 0};
  part.vocabulary_padding = padded.count - part.vocabulary.count;
  part.classes = dealt_range(static_cast<std::uint64_t>(config.classes), ranks, rank);
  return part;
}

std::vector<Gpt2Tensor> gpt2_tensors(const Gpt2Config& config, int ranks, int rank) {
  const Gpt2Part part = gpt2_part(config, ranks, rank);
  const auto width = static_cast<std::uint64_t>(config.width);
  const std::uint64_t head_width = width / static_cast<std::uint64_t>(config.heads);
  const IndexRange heads{part.heads.first * head_width, part.heads.count * head_width};
  // Each of Q, K and V is cut by heads: a contiguous third of the packed matrix would mix them.
  const std::vector<IndexRange> qkv = {
      {heads.first, heads.count}, {width + heads.first, heads.count}, {2 * width + heads.first, heads.count}};
  // Two branches per block add to the residual stream.
  const double residual_deviation = kInitialDeviation / std::sqrt(2.0 * config.layers);

  std::vector<Gpt2Tensor> tensors;
  Gpt2Tensor wte =
      matrix("wte.weight", sliced({static_cast<std::uint64_t>(config.vocabulary), width}, 0, {part.vocabulary}),
             kInitialDeviation);
  wte.group = "embedding";
  wte.slice.padding = part.vocabulary_padding;
  tensors.push_back(std::move(wte));
  Gpt2Tensor wpe{"wpe.weight", "embedding", TensorSlice::whole({static_cast<std::uint64_t>(config.context), width})};
  wpe.decay = Decay::kDecays;
  wpe.initial_deviation = kInitialDeviation;
  tensors.push_back(std::move(wpe));
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string h = "h." + std::to_string(layer) + ".";
    tensors.push_back(replicated(h + "ln_1.weight", "layer_norm", width, 1));
    tensors.push_back(replicated(h + "ln_1.bias", "layer_norm", width, 0));
    tensors.push_back(matrix(h + "attn.c_attn.weight", sliced({width, 3 * width}, 1, qkv), kInitialDeviation));
    tensors.push_back(sharded_bias(h + "attn.c_attn.bias", sliced({3 * width}, 0, qkv)));
    tensors.push_back(matrix(h + "attn.c_proj.weight", sliced({width, width}, 0, {heads}), residual_deviation));
    tensors.push_back(replicated(h + "attn.c_proj.bias", "bias", width, 0));
    tensors.push_back(replicated(h + "ln_2.weight", "layer_norm", width, 1));
    tensors.push_back(replicated(h + "ln_2.bias", "layer_norm", width, 0));
    tensors.push_back(matrix(h + "mlp.c_fc.weight", sliced({width, 4 * width}, 1, {part.hidden}), kInitialDeviation));
    tensors.push_back(sharded_bias(h + "mlp.c_fc.bias", sliced({4 * width}, 0, {part.hidden})));
    tensors.push_back(
        matrix(h + "mlp.c_proj.weight", sliced({4 * width, width}, 0, {part.hidden}), residual_deviation));
    tensors.push_back(replicated(h + "mlp.c_proj.bias", "bias", width, 0));
    for (std::size_t i = tensors.size() - kOfBlock; i < tensors.size(); ++i) tensors[i].layer = layer;
  }
  tensors.push_back(replicated("ln_f.weight", "layer_norm", width, 1));
  tensors.push_back(replicated("ln_f.bias", "layer_norm", width, 0));
  if (config.classifies()) {
    const auto classes = static_cast<std::uint64_t>(config.classes);
    tensors.push_back(matrix(kClassTensor, sliced({classes, width}, 0, {part.classes}), kInitialDeviation));
  }
  if (config.lora.is_on()) append_adapters(config, tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].number = i;
  for (const TensorRule& rule : config.tensor_rules) {
    for (Gpt2Tensor& tensor : tensors) {
      const bool stays_frozen = config.lora.is_on() && tensor.adapts.empty() && tensor.name != kClassTensor;
      if (!stays_frozen && matches_pattern(rule.pattern, tensor.name)) {
        tensor.learning_rate_factor = rule.learning_rate_factor;
      }
    }
  }
  return tensors;
}

std::vector<Gpt2Tensor> stage_tensors(const Gpt2Config& config, const StageRange& range, int ranks, int rank) {
  return stage_tensors(config, std::span(&range, 1), ranks, rank);
}

std::vector<Gpt2Tensor> stage_tensors(const Gpt2Config& config, std::span<const StageRange> ranges, int ranks,
                                      int rank) {
  const auto any = [&](auto has) { return std::any_of(ranges.begin(), ranges.end(), has); };
  const bool embedding = any([](const StageRange& range) { return range.has_embedding(); });
  const bool head = any([](const StageRange& range) { return range.has_head(); });
  std::vector<Gpt2Tensor> tensors = gpt2_tensors(config, ranks, rank);
  std::erase_if(tensors, [&](const Gpt2Tensor& tensor) {
    if (tensor.name == "wte.weight") return !embedding && (!head || config.classifies());
    if (tensor.name == "wpe.weight") return !embedding;
    if (tensor.name.starts_with("ln_f.") || tensor.name == kClassTensor) return !head;
    return !any([&](const StageRange& range) { return range.first <= tensor.layer && tensor.layer < range.end; });
  });
  for (Gpt2Tensor& tensor : tensors) tensor.is_copy = tensor.name == kTiedTensor && !head && !config.classifies();
  return tensors;
}

bool freezes_any(const Gpt2Config& config) {
  return std::ranges::any_of(gpt2_tensors(config, 1, 0), &Gpt2Tensor::is_frozen);
}

}  // namespace droptest::models
