// SPDX-License-Identifier: Apache-2.0
// A GPT-2 in a folder of Hugging Face's files (docs/formats.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/gpt2/gpt2_config.h"

namespace droptest::experiments {

struct PretrainedFolder {
  models::Gpt2Config model;  ///< layers, width, heads, context, vocabulary
  /// model.safetensors, or the shards that model.safetensors.index.json lists, in the order of their names.
  std::vector<std::string> weights;
  /// Labels of a classification head, in order; empty: its classes have no names of their own.
  std::vector<std::string> labels;
};

/// The head of the model that the folder's weights are for. An LM head must have the embedding's weights.
enum class FolderHead : std::uint8_t { kLanguageModel, kClassification };

/// Reads config.json and looks for the weights. Members that GPT-2 code would compute with are honoured, or refused if
/// they have other values than droptest's GPT-2. Throws: ConfigError that names the member and the values wanted, or
/// the file that is missing.
PretrainedFolder read_pretrained_folder(const std::string& folder, FolderHead head);

/// Names of the tokenizer files of a folder: tokenizer.json, vocab.json, merges.txt and their settings, and the files
/// of other kinds of tokenizers.
std::vector<std::string> tokenizer_files(const std::string& folder);

/// config.json of a model, as Hugging Face's GPT2Config reads it; `classes`: names of a classification head's classes.
std::string pretrained_config_text(const models::Gpt2Config& model, const std::vector<std::string>& classes);

}  // namespace droptest::experiments
