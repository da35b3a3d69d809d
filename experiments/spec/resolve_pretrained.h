// SPDX-License-Identifier: Apache-2.0
// The member /model/pretrained of a spec: a folder of Hugging Face's files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/data/example_file.h"
#include "experiments/data/pretrained_folder.h"
#include "experiments/spec/file_hashes.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Takes the extents of the folder's model into /model of a spec with defaults, which may name equal ones, and with
/// `files` the hashes of its weights and of its vocabulary. Appends to `errors`. Nothing without /model/pretrained.
void resolve_pretrained(nlohmann::json& spec, const nlohmann::json& given, const std::string& where, FileHashes* files,
                        std::vector<std::string>& errors);

/// The SHA-256 of the weights file of a folder; with several files, of the list of their names and hashes.
std::string weights_hash_of(const PretrainedFolder& folder, FileHashes& files);

/// Compares the classification head that the weights of the spec's start have with the spec's: task, number and names
/// of classes. A file without one is fine. Appends to `errors`. Reads headers alone.
void check_stored_head(const nlohmann::json& spec, const std::string& where, const RunConfig& config,
                       std::vector<std::string>& errors);

/// Throws: ConfigError where the weights have a classification head and their folder names other classes than these.
void check_class_names(const std::string& folder, const std::vector<std::string>& labels);

/// Checks the data of a spec with /model/pretrained, whose shards are listed, against the folder's tokenizer: the
/// sidecars of its token files and examples name its vocabulary, and count the tokens that the files have; nothing is a
/// text, unless the tokens of texts are bytes. Appends to `errors`.
void check_data_of_pretrained(const nlohmann::json& spec, const std::string& where, std::vector<std::string>& errors);

/// Throws: ConfigError where the sidecar of a token file (docs/formats.md) names another vocabulary than the folder
/// has.
void check_vocabulary(const std::string& token_file, const std::string& folder);

/// Throws: ConfigError where the folder has a tokenizer, which would make other tokens of the text than its bytes.
void require_text_of_bytes(const std::string& text, const std::string& folder);
/// The same for examples that are texts.
void require_examples_of_bytes(const std::vector<ExampleRow>& rows, const std::string& path, const std::string& layout,
                               const std::string& folder);

}  // namespace droptest::experiments
