// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/pretrained_checks.h"

#include <algorithm>
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
#include "experiments/spec/section_resolvers.h"
#include "models/gpt2/gpt2_tensors.h"
#include "sim/error.h"

namespace droptest::experiments {

using comm::quote_json;
using nlohmann::json;

std::string weights_hash_of(const PretrainedFolder& folder, FileHashes& files) {
  if (folder.weights.size() == 1) return files.of(folder.weights.front());
  comm::Sha256 all;
  for (const std::string& file : folder.weights) {
    all.add(std::filesystem::path(file).filename().string() + " " + files.of(file) + "\n");
  }
  return all.hex();
}

void check_stored_head(Resolution& resolution) {
  const json& spec = resolution.spec;
  const RunConfig& config = resolution.config;
  const std::string& weights = config.initial_weights;
  if (weights.empty()) return;
  const std::string pointer = spec["model"].contains("pretrained") ? "/model/pretrained" : "/model/weights";
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
    resolution.report(pointer, error.what());
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

void check_data_of_pretrained(Resolution& resolution) {
  const json& spec = resolution.spec;
  const json& model = spec["model"];
  const std::string folder =
      tokenizer_folder({model.value("pretrained", ""), model.value("weights", "")}, model.value("vocabulary", 0));
  if (folder.empty()) return;
  const json& data = spec["data"];
  const auto check = [&](const std::string& member, const auto& body) {
    try {
      body();
    } catch (const ConfigError& error) {
      resolution.report(std::string("/data/") + member, error.what());
    }
  };
  std::string of_folder;
  try {
    of_folder = model.contains("vocabulary_sha256") ? model["vocabulary_sha256"].get<std::string>()
                                                    : read_vocabulary(folder)->hash();
  } catch (const ConfigError& error) {
    resolution.report("/model", error.what());
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
