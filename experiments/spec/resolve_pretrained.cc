// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve_pretrained.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/spec/sha256.h"
#include "experiments/data/pretrained_folder.h"
#include "experiments/data/shard_list.h"
#include "experiments/data/token_sidecar.h"
#include "experiments/data/vocabulary.h"
#include "experiments/files/weights_file.h"
#include "experiments/spec/read_resolved.h"
#include "models/gpt2/gpt2_tensors.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

class PretrainedResolver {
 public:
  PretrainedResolver(json& spec, const json& given, const std::string& where, FileHashes* files,
                     std::vector<std::string>& errors)
      : spec_(spec), model_(spec["model"]), given_(given), where_(where), files_(files), errors_(errors) {}

  void resolve() {
    const std::string folder = model_["pretrained"];
    for (const char* other : {"preset", "weights"}) {
      if (!given_.value("model", json::object()).contains(other)) continue;
      report(other, "got " + quote_json(model_[other]) + " and /model/pretrained, want one of the two");
    }
    if (!errors_.empty()) return;
    const bool knows_extents = std::all_of(kExtents.begin(), kExtents.end(),
                                           [this](const auto& extent) { return model_.contains(extent.first); });
    if (files_ == nullptr && knows_extents) return;
    try {
      const bool classifies = spec_.value("task", "language_modelling") == "classification";
      const PretrainedFolder found =
          read_pretrained_folder(folder, classifies ? FolderHead::kClassification : FolderHead::kLanguageModel);
      for (const auto& [name, member] : kExtents) take(name, json(found.model.*member), folder + "/config.json");
      if (files_ == nullptr) return;
      take("sha256", weights_hash_of(found, *files_), "the weights in " + folder);
      const std::optional<Vocabulary> vocabulary = read_vocabulary(folder);
      if (!vocabulary || vocabulary->hash().empty()) return;
      take("vocabulary_sha256", vocabulary->hash(), "the tokenizer in " + folder);
      if (vocabulary->size() > found.model.vocabulary) {
        report("pretrained", folder + ": its tokenizer has tokens up to " + std::to_string(vocabulary->size() - 1) +
                                 ", want them below vocab_size " + std::to_string(found.model.vocabulary));
      }
    } catch (const ConfigError& error) {
      report("pretrained",
             std::string(error.what()) + "; paths are relative to " + std::filesystem::current_path().string());
    }
  }

 private:
  static constexpr std::array<std::pair<const char*, int models::Gpt2Config::*>, 5> kExtents = {{
      {"layers", &models::Gpt2Config::layers},
      {"width", &models::Gpt2Config::width},
      {"heads", &models::Gpt2Config::heads},
      {"context", &models::Gpt2Config::context},
      {"vocabulary", &models::Gpt2Config::vocabulary},
  }};

  void report(const char* member, const std::string& message) {
    errors_.push_back(where_ + ": /model/" + member + ": " + message);
  }

  /// A value of the folder: the spec may have the same.
  void take(const char* member, const json& value, const std::string& source) {
    if (model_.contains(member) && model_[member] != value) {
      report(member, "got " + quote_json(model_[member]) + ", but " + source + " has " + quote_json(value) +
                         "; leave this member out");
    }
    model_[member] = value;
  }

  json& spec_;
  json& model_;
  const json& given_;
  const std::string& where_;
  FileHashes* files_;
  std::vector<std::string>& errors_;
};

}  // namespace

std::string weights_hash_of(const PretrainedFolder& folder, FileHashes& files) {
  if (folder.weights.size() == 1) return files.of(folder.weights.front());
  comm::Sha256 all;
  for (const std::string& file : folder.weights) {
    all.add(std::filesystem::path(file).filename().string() + " " + files.of(file) + "\n");
  }
  return all.hex();
}

void resolve_pretrained(json& spec, const json& given, const std::string& where, FileHashes* files,
                        std::vector<std::string>& errors) {
  if (!spec["model"].contains("pretrained")) {
    if (spec["model"].contains("vocabulary_sha256")) {
      errors.push_back(where + ": /model/vocabulary_sha256: got a hash without a folder, want no hash");
    }
    return;
  }
  PretrainedResolver(spec, given, where, files, errors).resolve();
}

void check_stored_head(const json& spec, const std::string& where, const RunConfig& config,
                       std::vector<std::string>& errors) {
  const std::string& weights = config.initial_weights;
  if (weights.empty()) return;
  const std::string pointer =
      where + (spec["model"].contains("pretrained") ? ": /model/pretrained: " : ": /model/weights: ");
  try {
    const auto shape = stored_shape(weights, models::kClassTensor);
    if (!shape) return;
    if (!config.model.classifies()) {
      throw ConfigError(weights + ": has " + models::kClassTensor +
                        R"(, a classification head; want a model with an LM head, or /task "classification")");
    }
    const std::uint64_t classes = shape->empty() ? 0 : shape->front();
    if (classes != static_cast<std::uint64_t>(config.model.classes)) {
      throw ConfigError(weights + ": its " + models::kClassTensor + " is of " + std::to_string(classes) +
                        " classes, but /data/labels has " + std::to_string(config.model.classes) + ", " +
                        quote_json(spec["data"]["labels"]) +
                        "; want its classes, or weights without that tensor, which get a new head");
    }
    if (std::filesystem::is_directory(weights)) check_class_names(weights, spec["data"]["labels"]);
  } catch (const ConfigError& error) {
    errors.push_back(pointer + error.what());
  }
}

void check_class_names(const std::string& folder, const std::vector<std::string>& labels) {
  if (!stored_shape(folder, models::kClassTensor)) return;
  const std::vector<std::string> names = read_pretrained_folder(folder, FolderHead::kClassification).labels;
  if (names.empty() || names == labels) return;
  throw ConfigError(folder + "/config.json: /id2label: has the classes " + quote_json(json(names)) +
                    ", but /data/labels has " + quote_json(json(labels)) + "; want the same ones in the same order");
}

namespace {

/// `of_folder`: the hash of its vocabulary; empty: not known.
void require_vocabulary(const std::string& token_file, const std::string& folder, const std::string& of_folder) {
  const std::string of_tokens = vocabulary_hash_of(token_file);
  if (of_tokens.empty() || of_folder.empty() || of_tokens == of_folder) return;
  throw ConfigError(token_file + " was made with the vocabulary " + of_tokens.substr(0, 12) + "..., but " + folder +
                    " has " + of_folder.substr(0, 12) +
                    "...; make it anew with scripts/tokenize and the tokenizer of that folder");
}

}  // namespace

void check_data_of_pretrained(const json& spec, const std::string& where, std::vector<std::string>& errors) {
  const json& model = spec["model"];
  const std::string folder =
      tokenizer_folder({model.value("pretrained", ""), model.value("weights", "")}, model.value("vocabulary", 0));
  if (folder.empty()) return;
  const json& data = spec["data"];
  const auto check = [&](const std::string& member, const auto& body) {
    try {
      body();
    } catch (const ConfigError& error) {
      errors.push_back(where + ": /data/" + member + ": " + error.what());
    }
  };
  std::string of_folder;
  try {
    of_folder = model.contains("vocabulary_sha256") ? model["vocabulary_sha256"].get<std::string>()
                                                    : read_vocabulary(folder)->hash();
  } catch (const ConfigError& error) {
    errors.push_back(where + ": /model: " + error.what());
    return;
  }
  for (const char* member : {"examples", "validation_examples"}) {
    if (!data.contains(member)) continue;
    check(member, [&] {
      require_vocabulary(data[member], folder, of_folder);
      const std::string layout = data["layout"];
      require_examples_of_bytes(read_examples(data[member], layout, data["separator"]), data[member], layout, folder);
    });
  }
  if (data.contains("text")) check("text", [&] { require_text_of_bytes(data["text"], folder); });
  if (data.contains("tokens")) {
    check("tokens", [&] {
      const std::string file = data["tokens"];
      require_vocabulary(file, folder, of_folder);
      DataConfig config;
      read_data(data, config);
      check_token_count_of(file, look_at_shards({file}, ShardConfig::Content::kTokens, config.format, "")[0].tokens);
    });
  }
  for (const auto& files : {std::pair("files", "shards"), std::pair("validation_files", "validation_shards")}) {
    check(files.second, [&] {
      for (const json& shard : data.value(files.first, json::array())) {
        if (data["format"] == "text") return require_text_of_bytes(shard["file"], folder);
        require_vocabulary(shard["file"], folder, of_folder);
        check_token_count_of(shard["file"], shard["tokens"]);
      }
    });
  }
}

void check_vocabulary(const std::string& token_file, const std::string& folder) {
  if (vocabulary_hash_of(token_file).empty()) return;
  if (const std::optional<Vocabulary> vocabulary = read_vocabulary(folder)) {
    require_vocabulary(token_file, folder, vocabulary->hash());
  }
}

void require_text_of_bytes(const std::string& text, const std::string& folder) {
  const std::optional<Vocabulary> vocabulary = read_vocabulary(folder);
  if (!vocabulary || vocabulary->is_bytes()) return;
  throw ConfigError(text + ": is a text, whose tokens are its bytes, but " + folder +
                    " has a tokenizer; want the token file of " + tokenize_call(text, "", folder));
}

void require_examples_of_bytes(const std::vector<ExampleRow>& rows, const std::string& path, const std::string& layout,
                               const std::string& folder) {
  const auto text = std::find_if(rows.begin(), rows.end(), [](const ExampleRow& row) { return row.tokens.empty(); });
  if (text == rows.end()) return;
  const std::optional<Vocabulary> vocabulary = read_vocabulary(folder);
  if (!vocabulary || vocabulary->is_bytes()) return;
  throw ConfigError(path + ": line " + std::to_string(text->line) + ": is a text, whose tokens are its bytes, but " +
                    folder + " has a tokenizer; want the tokens of " +
                    tokenize_call(path, " --examples " + layout, folder));
}

}  // namespace droptest::experiments
