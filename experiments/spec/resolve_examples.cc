// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve_examples.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>

#include "comm/json/json_text.h"
#include "experiments/data/example_set.h"
#include "models/gpt2/gpt2_tensors.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

constexpr const char* kClassification = "classification";
constexpr std::array kOfExamples = {"examples", "validation_examples", "layout", "labels", "separator",
                                    "too_long", "validation_sha256"};

class ExampleResolver {
 public:
  ExampleResolver(json& spec, const json& given, const std::string& where, FileHashes* files, RunConfig& config,
                  std::vector<std::string>& errors)
      : spec_(spec),
        data_(spec["data"]),
        given_(given),
        given_data_(given.at("data")),
        where_(where),
        files_(files),
        config_(config),
        errors_(errors) {}

  void resolve() {
    const bool classifies = spec_.value("task", "") == kClassification;
    if (!classifies) spec_.erase("task");
    if (classifies != data_.contains("examples")) {
      report("/task", classifies ? "got \"classification\" without /data/examples, want them"
                                 : "got \"language_modelling\" with /data/examples, want \"classification\"");
      return;
    }
    if (!classifies) {
      refuse_members_of_examples();
      return;
    }
    data_.erase("format");
    refuse_members_of_tokens();
    if (data_.contains("validation_examples")) {
      if (given_data_.contains("validation_fraction")) {
        report("/data/validation_fraction", "got " + quote_json(given_data_["validation_fraction"]) +
                                                " and /data/validation_examples, want one of the two");
      }
      data_.erase("validation_fraction");
      hash("validation_examples", "validation_sha256");
    }
    hash("examples", "sha256");
    if (!errors_.empty()) return;
    find_labels();
    if (!data_.contains("labels")) return;
    check_labels();
    config_.model.classes = static_cast<int>(data_["labels"].size());
    if (errors_.empty() && files_ != nullptr) check_files();
  }

 private:
  void report(const std::string& pointer, const std::string& message) {
    errors_.push_back(where_ + ": " + pointer + ": " + message);
  }

  void refuse_members_of_examples() {
    for (const char* member : kOfExamples) {
      if (given_data_.contains(member)) {
        report(std::string("/data/") + member,
               "got " + quote_json(given_data_[member]) +
                   ", which task \"classification\" alone has a use for, want it absent");
      }
      data_.erase(member);
    }
  }

  void refuse_members_of_tokens() {
    for (const char* member : {"format", "documents"}) {
      if (!given_data_.contains(member)) continue;
      report(std::string("/data/") + member,
             "got " + quote_json(given_data_[member]) + ", which examples have no use for, want it absent");
    }
    const json validation = given_.value("validation", json::object());
    // Resolved specs have the usual value.
    if (validation.contains("tokens") && validation["tokens"] != ValidationConfig().tokens) {
      report("/validation/tokens", "got " + quote_json(validation["tokens"]) +
                                       ", want it absent: all examples of the validation set are evaluated");
    }
    if (validation.contains("selection_tokens")) {
      report("/validation/selection_tokens",
             "got " + quote_json(validation["selection_tokens"]) + ", want it absent: examples have no third part");
    }
  }

  void hash(const char* path, const char* member) {
    if (files_ == nullptr) return;
    const std::string file = data_[path];
    try {
      const std::string& found = files_->of(file);
      if (data_.contains(member) && data_[member] != found) {
        report(std::string("/data/") + member, "got " + data_[member].dump() + ", but " + file + " has \"" + found +
                                                   "\"; want the file that was meant, or no hash");
      }
      data_[member] = found;
    } catch (const ConfigError& error) {
      report(std::string("/data/") + path,
             std::string(error.what()) + "; paths are relative to " + std::filesystem::current_path().string());
    }
  }

  /// Those of the training file, where the spec names none.
  void find_labels() {
    if (data_.contains("labels")) return;
    try {
      data_["labels"] =
          labels_of(read_examples(data_["examples"], data_["layout"].get<std::string>(), data_["separator"]));
    } catch (const ConfigError& error) {
      report("/data/examples", error.what());
    }
  }

  void check_labels() {
    const json& labels = data_["labels"];
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (std::find(labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(i), labels[i]) !=
          labels.begin() + static_cast<std::ptrdiff_t>(i)) {
        report("/data/labels/" + std::to_string(i), "got " + quote_json(labels[i]) + " a second time");
      }
    }
    if (labels.size() < 2) {
      report("/data/labels",
             "got " + std::to_string(labels.size()) + " label, " + quote_json(labels) + ", want two or more");
    }
  }

  /// Before the work starts, each line of the files.
  void check_files() {
    try {
      const json sequence = spec_["training"].value("sequence_tokens", json(config_.model.context));
      (void)load_examples(read_example_config(data_), data_.value("validation_fraction", 0.0), config_.model.vocabulary,
                          sequence.get<int>());
    } catch (const ConfigError& error) {
      report("/data/examples", error.what());
    }
  }

  json& spec_;
  json& data_;
  const json& given_;
  const json& given_data_;
  const std::string& where_;
  FileHashes* files_;
  RunConfig& config_;
  std::vector<std::string>& errors_;
};

/// /training/class_weights.
void resolve_class_weights(json& spec, const std::string& where, RunConfig& config, std::vector<std::string>& errors) {
  json& training = spec["training"];
  if (!training.contains("class_weights")) return;
  const auto report = [&](const std::string& message) {
    errors.push_back(where + ": /training/class_weights: got " + quote_json(training["class_weights"]) + ", " +
                     message);
  };
  if (!config.model.classifies()) return report("want it absent, or task \"classification\"");
  if (config.device == Device::kCuda) {
    return report(R"(want it absent with /device "cuda", whose kernels have none, or /device "cpu")");
  }
  const json labels = spec["data"]["labels"];
  json weights = training["class_weights"];
  if (weights == "balanced") {
    // n / (classes x examples of the class). Source: class_weight "balanced" of scikit-learn.
    const json& data = spec["data"];
    // A spec may be checked where its files are not; where they are needed, that is an error already.
    if (!std::filesystem::exists(data["examples"].get<std::string>())) {
      training["class_weights"] = std::vector<double>(labels.size(), 1.0);
      return;
    }
    try {
      const ExampleSets sets = load_examples(read_example_config(data), data.value("validation_fraction", 0.0),
                                             config.model.vocabulary, config.model.context);
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
void resolve_lora(json& spec, const std::string& where, RunConfig& config, std::vector<std::string>& errors) {
  json& training = spec["training"];
  if (!training.contains("lora")) return;
  json& section = training["lora"];
  const auto refuse = [&](const std::string& message) { errors.push_back(where + ": /training/lora: " + message); };
  models::LoraOptions& lora = config.model.lora;
  lora.rank = section["rank"].get<int>();
  if (!section.contains("alpha")) section["alpha"] = 2 * lora.rank;
  lora.alpha = section["alpha"].get<double>();
  lora.targets = section["targets"].get<std::vector<std::string>>();
  for (std::size_t i = 0; i < lora.targets.size(); ++i) {
    const auto here = lora.targets.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(lora.targets.begin(), here, *here) != here) refuse("got the target \"" + *here + "\" twice");
  }
  if (training.contains("layer_decay")) refuse("got it with /training/layer_decay, want one of the two");
  if (config.device == Device::kCuda)
    refuse(R"(got it with /device "cuda", whose kernels have no adapters; want "cpu")");
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

ExampleConfig read_example_config(const json& data) {
  ExampleConfig config;
  config.training = data["examples"];
  config.validation = data.value("validation_examples", "");
  config.layout = data["layout"];
  config.labels = data.value("labels", std::vector<std::string>());
  config.separator = data["separator"];
  config.too_long = data["too_long"] == "refuse" ? ExampleConfig::TooLong::kRefused : ExampleConfig::TooLong::kCut;
  return config;
}

void resolve_examples(json& spec, const json& given, const std::string& where, FileHashes* files, RunConfig& config,
                      std::vector<std::string>& errors) {
  ExampleResolver(spec, given, where, files, config, errors).resolve();
}

void resolve_tensor_rules(json& spec, const json& given, const std::string& where, RunConfig& config,
                          std::vector<std::string>& errors) {
  json& training = spec["training"];
  resolve_class_weights(spec, where, config, errors);
  resolve_lora(spec, where, config, errors);
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
    const auto report = [&](const std::string& message) { errors.push_back(where + ": " + pointer + message); };
    const bool frozen = rule.value("frozen", false);
    if (frozen == rule.contains("learning_rate_factor")) {
      report(": got " + quote_json(rule) + ", want \"frozen\": true or a learning_rate_factor");
      continue;
    }
    const std::string pattern = rule["match"];
    if (std::none_of(tensors.begin(), tensors.end(),
                     [&](const auto& tensor) { return models::matches_pattern(pattern, tensor.name); })) {
      report("/match: got " + quote_json(rule["match"]) + ", which no tensor's name matches: wte.weight, wpe.weight, " +
             "h.0.ln_1.weight, ..., ln_f.bias" + (config.model.classifies() ? ", score.weight" : ""));
    }
    rules.push_back({{"match", pattern}, {"learning_rate_factor", frozen ? json(0.0) : rule["learning_rate_factor"]}});
  }
  for (const json& rule : rules) {
    config.model.tensor_rules.push_back({rule["match"], rule["learning_rate_factor"].get<double>()});
  }
  if (rules.empty()) return;
  training["tensors"] = rules;
  const auto of_training = [&](const char* member) { return given.value("training", json::object()).contains(member); };
  const std::string pointer = of_training("tensors") ? "/training/tensors" : "/training/layer_decay";
  const std::vector<models::Gpt2Tensor> ruled = models::gpt2_tensors(config.model, 1, 0);
  const bool freezes = std::any_of(ruled.begin(), ruled.end(), [](const auto& tensor) { return tensor.is_frozen(); });
  if (std::all_of(ruled.begin(), ruled.end(), [](const auto& tensor) { return tensor.is_frozen(); })) {
    errors.push_back(where + ": " + pointer + ": all tensors are frozen, want some that are trained");
  }
  const bool offloads = spec.value("memory", json::object()).value("offload_parameters", false);
  if (freezes && (config.sharding.zero > 1 || offloads)) {
    errors.push_back(where + ": " + pointer + ": got frozen tensors with " +
                     (config.sharding.zero > 1 ? "/parallel/zero " + std::to_string(config.sharding.zero)
                                               : std::string("/memory/offload_parameters")) +
                     ", want /parallel/zero 0 or 1 and parameters in memory");
  }
  const bool scales = std::any_of(ruled.begin(), ruled.end(), [](const auto& tensor) {
    return tensor.learning_rate_factor != 0 && tensor.learning_rate_factor != 1;
  });
  if (scales && config.device == Device::kCuda) {
    errors.push_back(where + ": " + pointer +
                     R"(: got learning rates of tensors with /device "cuda", whose kernels have )" +
                     R"(one rate; want frozen tensors alone, or /device "cpu")");
  }
}

}  // namespace droptest::experiments
