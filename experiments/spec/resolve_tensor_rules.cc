// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/section_resolvers.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/data/example_set.h"
#include "experiments/spec/section_members.h"
#include "models/gpt2/gpt2_tensors.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

/// /training/class_weights.
void resolve_class_weights(Resolution& resolution) {
  json& spec = resolution.spec;
  RunConfig& config = resolution.config;
  json& training = spec["training"];
  if (!training.contains("class_weights")) return;
  const auto report = [&](const std::string& message) {
    resolution.report("/training/class_weights", "got " + quote_json(training["class_weights"]) + ", " + message);
  };
  if (spec.value("task", "") != "classification") return report("want it absent, or task \"classification\"");
  if (!config.model.classifies()) return;  // its examples have errors
  const json labels = spec["data"]["labels"];
  json weights = training["class_weights"];
  if (weights == "balanced") {
    // n / (classes x examples of the class). Source: class_weight "balanced" of scikit-learn.
    const json& data = spec["data"];
    // A spec may be checked on a machine without its files. If they are needed, a missing file is an error already.
    if (resolution.has_errors() || !std::filesystem::exists(data["examples"].get<std::string>())) {
      training["class_weights"] = std::vector<double>(labels.size(), 1.0);
      return;
    }
    try {
      ExampleConfig examples;
      read_members(data, examples);
      const ExampleSets sets = load_examples(examples, data.value("validation_fraction", 0.0), config.model.vocabulary,
                                             config.model.context);
      weights = json::array();
      for (const std::uint64_t count : sets.training.counts(labels.size())) {
        weights.push_back(static_cast<double>(sets.training.size()) /
                          (static_cast<double>(labels.size()) * static_cast<double>(count)));
      }
    } catch (const ConfigError& error) {
      return report(error.what());
    }
  } else if (weights.is_object()) {
    json in_order = json::array();
    for (const json& label : labels) {
      if (!weights.contains(label.get<std::string>())) return report("want a weight of the label " + quote_json(label));
      in_order.push_back(weights[label.get<std::string>()]);
    }
    if (weights.size() != labels.size()) return report("want weights of the labels " + quote_json(labels) + " alone");
    weights = in_order;
  }
  if (weights.size() != labels.size())
    return report("want a weight for each of " + std::to_string(labels.size()) + " labels");
  training["class_weights"] = weights;
  config.model.class_weights = weights.get<std::vector<double>>();
}

/// /training/lora.
void resolve_lora(Resolution& resolution) {
  json& spec = resolution.spec;
  RunConfig& config = resolution.config;
  json& training = spec["training"];
  if (!training.contains("lora")) return;
  json& section = training["lora"];
  const auto refuse = [&](const std::string& message) { resolution.report("/training/lora", message); };
  models::LoraOptions& lora = config.model.lora;
  if (!section.contains("alpha")) section["alpha"] = 2.0 * section["rank"].get<int>();
  read_members(section, lora);
  for (std::size_t i = 0; i < lora.targets.size(); ++i) {
    const auto here = lora.targets.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(lora.targets.begin(), here, *here) != here) refuse("got the target \"" + *here + "\" twice");
  }
  if (training.contains("layer_decay")) refuse("got it with /training/layer_decay, want one of the two");
  if (training.contains("precision")) {
    refuse("got it with /training/precision " + quote_json(training["precision"]) + ", want float32");
  }
  if (config.tensor_sequence) refuse("got it with /parallel/tensor_sequence true, want false");
}

/// Source: the layer-wise decay of Clark et al. 2020 (ELECTRA): the head has the full rate, each layer below `decay`
/// times that of the layer above, the embeddings are the lowest one.
json rules_of_decay(double decay, int layers) {
  json rules = json::array();
  const auto add = [&](const std::string& pattern, int below) {
    rules.push_back({{"match", pattern}, {"learning_rate_factor", std::pow(decay, below)}});
  };
  for (const char* embedding : {"wte.*", "wpe.*"}) add(embedding, layers + 1);
  for (int layer = 0; layer < layers; ++layer) add("h." + std::to_string(layer) + ".*", layers - layer);
  return rules;
}

}  // namespace

void resolve_tensor_rules(Resolution& resolution) {
  json& spec = resolution.spec;
  RunConfig& config = resolution.config;
  json& training = spec["training"];
  resolve_class_weights(resolution);
  resolve_lora(resolution);
  json rules = json::array();
  if (training.contains("layer_decay")) {
    rules = rules_of_decay(training["layer_decay"].get<double>(), config.model.layers);
    training.erase("layer_decay");
  }
  const std::vector<models::Gpt2Tensor> tensors = models::gpt2_tensors(config.model, 1, 0);
  const json listed = training.value("tensors", json::array());
  training.erase("tensors");
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const json& rule = listed[i];
    const std::string pointer = "/training/tensors/" + std::to_string(i);
    const auto report = [&](const std::string& member, const std::string& message) {
      resolution.report(pointer + member, message);
    };
    const bool frozen = rule.value("frozen", false);
    if (frozen == rule.contains("learning_rate_factor")) {
      report("", "got " + quote_json(rule) + ", want \"frozen\": true or a learning_rate_factor");
      continue;
    }
    const std::string pattern = rule["match"];
    const json factor = frozen ? json(0.0) : rule["learning_rate_factor"];
    const auto matches = [&](const models::Gpt2Tensor& tensor) {
      return models::matches_pattern(pattern, tensor.name);
    };
    if (std::none_of(tensors.begin(), tensors.end(), matches)) {
      report("/match", "got " + quote_json(rule["match"]) +
                           ", which no tensor's name matches: wte.weight, wpe.weight, " +
                           "h.0.ln_1.weight, ..., ln_f.bias" + (config.model.classifies() ? ", score.weight" : ""));
    } else if (factor != 0 && std::none_of(tensors.begin(), tensors.end(), [&](const models::Gpt2Tensor& tensor) {
                 return matches(tensor) && !tensor.is_frozen();
               })) {
      report("/match", "got " + quote_json(rule["match"]) + " with /training/lora, which trains adapters" +
                           (config.model.classifies() ? " and the head" : "") +
                           " alone; want a pattern that matches one of them, as \"*lora_*\", or no lora");
    }
    rules.push_back({{"match", pattern}, {"learning_rate_factor", factor}});
  }
  for (const json& rule : rules) read_members(rule, config.model.tensor_rules.emplace_back());
  if (!rules.empty()) training["tensors"] = rules;
  if (rules.empty() && !config.model.lora.is_on()) return;
  const auto of_training = [&](const char* member) {
    return resolution.given.value("training", json::object()).contains(member);
  };
  const std::string pointer = of_training("tensors")      ? "/training/tensors"
                              : config.model.lora.is_on() ? "/training/lora"
                                                          : "/training/layer_decay";
  const std::vector<models::Gpt2Tensor> ruled = models::gpt2_tensors(config.model, 1, 0);
  const auto is_frozen = [](const models::Gpt2Tensor& tensor) { return tensor.is_frozen(); };
  const bool freezes = std::any_of(ruled.begin(), ruled.end(), is_frozen);
  const bool lora_trains = std::any_of(ruled.begin(), ruled.end(), [](const models::Gpt2Tensor& tensor) {
    return !tensor.adapts.empty() && !tensor.is_frozen();
  });
  if (std::all_of(ruled.begin(), ruled.end(), is_frozen)) {
    resolution.report(pointer, "all tensors are frozen, want some that are trained");
  } else if (config.model.lora.is_on() && !lora_trains) {
    resolution.report(pointer, "all adapters of /training/lora are frozen, want some that are trained, or no lora");
  }
  const bool offloads = spec.value("memory", json::object()).value("offload_parameters", false);
  if (freezes && (config.sharding.zero > 1 || offloads)) {
    resolution.report(pointer, std::string("got frozen tensors with ") +
                                   (config.sharding.zero > 1 ? "/parallel/zero " + std::to_string(config.sharding.zero)
                                                             : std::string("/memory/offload_parameters")) +
                                   ", want /parallel/zero 0 or 1 and parameters in memory");
  }
}

}  // namespace droptest::experiments
