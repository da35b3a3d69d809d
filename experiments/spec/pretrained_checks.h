// SPDX-License-Identifier: Apache-2.0
// The member /model/pretrained of a spec: a folder of Hugging Face's files.
#pragma once

#include <string>
#include <vector>

#include "experiments/data/example_file.h"
#include "experiments/data/pretrained_folder.h"
#include "experiments/spec/file_hashes.h"

namespace droptest::experiments {

/// The SHA-256 of the weights file of a folder. Several files have the SHA-256 of the list of their names and hashes.
std::string weights_hash_of(const PretrainedFolder& folder, FileHashes& files);

/// Throws: ConfigError if the weights have a classification head and their folder names other classes than these.
void check_class_names(const std::string& folder, const std::vector<std::string>& labels);

/// Throws: ConfigError if the sidecar of a token file (docs/formats.md) names another vocabulary than the folder has.
void check_vocabulary(const std::string& token_file, const std::string& folder);

/// Throws: ConfigError if the folder has a tokenizer, because the text's tokens would not be its bytes.
void require_text_of_bytes(const std::string& text, const std::string& folder);
/// Throws: ConfigError if examples are texts and the folder has a tokenizer, as require_text_of_bytes().
void require_examples_of_bytes(const std::vector<ExampleRow>& rows, const std::string& path, const std::string& layout,
                               const std::string& folder);

}  // namespace droptest::experiments
