// SPDX-License-Identifier: Apache-2.0
// The sizes and checksums of shards, as a file lists them (docs/data.md).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace droptest::experiments {

struct ShardChecksum {
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

/// The entries by path, in normal form; relative paths are relative to `folder`, which is put before them.
/// Throws: ConfigError that names the JSON pointer, for text that is not a manifest; for a file that is listed twice.
std::map<std::string, ShardChecksum> parse_shard_manifest(std::string_view text, const std::string& folder,
                                                          const std::string& where);

/// Reads the file at `path`; paths are absolute. Throws: the errors of parse_shard_manifest(); ConfigError for a file
/// that cannot be read.
std::map<std::string, ShardChecksum> read_shard_manifest(const std::string& path);

/// Makes a manifest of these files, to be written at `path`; reads the files. Throws: ConfigError for a file that
/// cannot be read.
nlohmann::json make_shard_manifest(const std::vector<std::string>& files, const std::string& path);

/// A path without "." and "x/..", so that two spellings of a file compare equal.
std::string normal_path(const std::string& path);

}  // namespace droptest::experiments
