// SPDX-License-Identifier: Apache-2.0
// The files that glob patterns name, with the number of their tokens.
#pragma once

#include <string>
#include <vector>

#include "experiments/data/data_config.h"

namespace droptest::experiments {

/// The regular files that match any of the patterns, each once, sorted by the bytes of their names.
/// Throws: ConfigError for a pattern without a match, which names the folder and the number of its entries; for a match
/// that is no regular file, or whose name is not UTF-8.
std::vector<std::string> match_shards(const std::vector<std::string>& patterns);

/// Sizes and numbers of tokens of these files; reads their first bytes. With `manifest` (a path, or empty) also
/// checksums. Throws: ConfigError for a file that cannot be read, whose header does not hold, that the manifest does
/// not list, or that has another size there.
std::vector<ShardFile> look_at_shards(const std::vector<std::string>& files, ShardConfig::Content content,
                                      TokenFormat format, const std::string& manifest);

/// Fills `files` and `validation_files` of the run's shards where they are empty. Throws: as above.
void list_shards(DataConfig& data);

}  // namespace droptest::experiments
