// SPDX-License-Identifier: Apache-2.0
// The files that glob patterns name, with the number of their tokens.
#pragma once

#include <string>
#include <vector>

#include "experiments/data/data_config.h"

namespace droptest::experiments {

/// The regular files that match any of the patterns, each once, sorted by the bytes of their names.
/// Throws: ConfigError for a pattern without a match, which names the folder and the number of its entries; for a match
/// that is no regular file, or has a name that is not UTF-8.
std::vector<std::string> match_shards(const std::vector<std::string>& patterns);

/// Sizes and numbers of tokens of these files; reads their first bytes. If there is a `manifest` (a path, or empty),
/// also checksums. Throws: ConfigError for a file that cannot be read, has an invalid header, is missing from the
/// manifest, or has another size there.
std::vector<ShardFile> look_at_shards(const std::vector<std::string>& files, ShardConfig::Content content,
                                      TokenFormat format, const std::string& manifest);

/// Fills `files` and `validation_files` of the run's shards if they are empty. Throws: the same errors.
void list_shards(DataConfig& data);

}  // namespace droptest::experiments
