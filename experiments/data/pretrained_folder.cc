// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/pretrained_folder.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/data/vocabulary.h"
#include "experiments/files/weights_file.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// A member of config.json, its allowed values, and its value if it is absent.
struct OddMember {
  const char* name;
  json absent;
  std::vector<json> allowed;
  const char* meaning;
};

/// The members that change the computation of GPT-2 code, except the model's extents. Source: configuration_gpt2.py and
/// modeling_gpt2.py of transformers 4.
const std::vector<OddMember>& odd_members() {
  static const std::vector<OddMember> members = {
      {"model_type", "absent", {"gpt2"}, "the kind of model"},
      {"activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"}, "GELU by tanh"},
      {"layer_norm_epsilon", 1e-5, {1e-5}, "the epsilon of norms"},
      {"scale_attn_weights", true, {true}, "scores by the root of the head's width"},
      {"scale_attn_by_inverse_layer_idx", false, {false}, "scores by the layer's number"},
      {"reorder_and_upcast_attn", false, {false, true}, "scores in float32, as here"},
      {"add_cross_attention", false, {false}, "attention to an encoder"},
      {"is_decoder", false, {false, true}, "a decoder without an encoder"},
      {"position_embedding_type", "absolute", {"absolute"}, "learned positions"},
      {"quantization_config", nullptr, {nullptr}, "quantised weights"},
      {"pruned_heads", json::object(), {json::object()}, "heads that were taken away"},
  };
  return members;
}

std::string alternatives(const std::vector<json>& values) {
  std::string text;
  for (const json& value : values) text += (text.empty() ? "" : " or ") + comm::quote_json(value);
  return text;
}

int member_extent(const json& config, const char* name, const std::string& where) {
  const json value = config.value(name, json());
  if (!value.is_number_unsigned() || value == 0 ||
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    throw ConfigError(where + ": /" + name + ": got " + comm::quote_json(value) + ", want a whole number above 0");
  }
  return value.get<int>();
}

/// The labels in id2label. Classes of a head that have no names are LABEL_0, LABEL_1, ...
std::vector<std::string> labels_in(const json& config, const std::string& where) {
  const json names = config.value("id2label", json::object());
  std::vector<std::string> labels;
  bool is_named = false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string number = std::to_string(i);
    if (!names.is_object() || !names.contains(number) || !names[number].is_string()) {
      throw ConfigError(where + ": /id2label: got " + comm::quote_json(names) +
                        ", want an object with the texts 0 to " + std::to_string(names.size() - 1));
    }
    labels.push_back(names[number]);
    is_named = is_named || labels.back() != "LABEL_" + number;
  }
  return is_named ? labels : std::vector<std::string>();
}

}  // namespace

PretrainedFolder read_pretrained_folder(const std::string& folder, FolderHead head) {
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(folder + ": no such folder; want one with Hugging Face's config.json and model.safetensors");
  }
  const std::string where = (std::filesystem::path(folder) / "config.json").string();
  const json config = comm::load_json(where);
  if (!config.is_object()) throw ConfigError(where + ": got " + comm::quote_json(config) + ", want an object");
  const auto refuse = [&](const char* name, const json& got, const std::string& wanted) {
    throw ConfigError(where + ": /" + name + ": got " + comm::quote_json(got) + ", want " + wanted);
  };
  for (const OddMember& member : odd_members()) {
    const json value = config.value(member.name, member.absent);
    if (std::find(member.allowed.begin(), member.allowed.end(), value) != member.allowed.end()) continue;
    refuse(member.name, value, alternatives(member.allowed) + " (" + member.meaning + ")");
  }
  PretrainedFolder result;
  models::Gpt2Config& model = result.model;
  model.layers = member_extent(config, "n_layer", where);
  model.width = member_extent(config, "n_embd", where);
  model.heads = member_extent(config, "n_head", where);
  model.context = member_extent(config, "n_positions", where);
  model.vocabulary = member_extent(config, "vocab_size", where);
  const json inner = config.value("n_inner", json());
  if (!inner.is_null() && inner != 4 * std::int64_t{model.width}) {
    refuse("n_inner", inner, "null or " + std::to_string(4 * std::int64_t{model.width}) + ", four times n_embd");
  }
  const json tied = config.value("tie_word_embeddings", json(true));
  if (tied != true && head == FolderHead::kLanguageModel) {
    refuse("tie_word_embeddings", tied, "true (the LM head has the embedding's weights), or task \"classification\"");
  }
  const json problem = config.value("problem_type", json());
  if (head == FolderHead::kClassification && !problem.is_null() && problem != "single_label_classification") {
    refuse("problem_type", problem, "null or \"single_label_classification\" (one label of each text, by a softmax)");
  }
  result.weights = weight_files(folder);
  if (head == FolderHead::kClassification) result.labels = labels_in(config, where);
  return result;
}

std::vector<std::string> tokenizer_files(const std::string& folder) {
  std::vector<std::string> found = other_tokenizer_files(folder);
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json",
                           "special_tokens_map.json", "added_tokens.json"}) {
    if (std::filesystem::is_regular_file(std::filesystem::path(folder) / name)) found.emplace_back(name);
  }
  return found;
}

std::string pretrained_config_text(const models::Gpt2Config& model, const std::vector<std::string>& classes) {
  json config = {{"model_type", "gpt2"},
                 {"architectures", {model.classifies() ? "GPT2ForSequenceClassification" : "GPT2LMHeadModel"}},
                 {"n_layer", model.layers},
                 {"n_embd", model.width},
                 {"n_head", model.heads},
                 {"n_positions", model.context},
                 {"vocab_size", model.vocabulary},
                 {"n_inner", nullptr},
                 {"activation_function", "gelu_new"},
                 {"layer_norm_epsilon", 1e-5},
                 {"tie_word_embeddings", true},
                 {"torch_dtype", "float32"}};
  for (std::size_t i = 0; i < classes.size(); ++i) {
    config["id2label"][std::to_string(i)] = classes[i];
    config["label2id"][classes[i]] = i;
  }
  // Sequences are padded behind their last token, with a token that no example has there: pad_token_id is the user's.
  return config.dump(2) + "\n";
}

}  // namespace droptest::experiments
