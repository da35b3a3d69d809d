// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/shard_list.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <system_error>

#include "comm/json/json_text.h"
#include "experiments/data/shard_manifest.h"
#include "experiments/data/token_format.h"
#include "experiments/data/token_source.h"
#include "experiments/files/crc32c.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// The text "corpus has 3 files", or the reason why its files cannot be listed.
std::string entries_text(const std::string& pattern) {
  const std::filesystem::path parent = std::filesystem::path(pattern).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (folder.find_first_of("*?[") != std::string::npos) return "want a pattern of files that are there";
  std::error_code error;
  const auto entries = std::filesystem::directory_iterator(folder, error);
  if (error) return "folder " + folder + ": " + error.message();
  return "folder " + folder + " has " + std::to_string(std::distance(begin(entries), end(entries))) + " entries";
}

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &found);
  const std::unique_ptr<glob_t, void (*)(glob_t*)> owner(&found, ::globfree);
  if (status != 0 && status != GLOB_NOMATCH) throw ConfigError(pattern + ": the folders cannot be read");
  const std::span<char*> paths(found.gl_pathv, status == 0 ? found.gl_pathc : 0);
  if (paths.empty()) throw ConfigError(pattern + ": no file matches; " + entries_text(pattern));
  return {paths.begin(), paths.end()};
}

/// The number of tokens, from the size and the first bytes.
std::uint64_t count_tokens_of(const std::string& file, std::uint64_t bytes, ShardConfig::Content content,
                              TokenFormat format) {
  if (content == ShardConfig::Content::kText) return bytes;
  std::vector<char> head(std::min<std::uint64_t>(bytes, kTokenHeadBytes));
  std::ifstream stream(file, std::ios::binary);
  if (!stream.read(head.data(), static_cast<std::streamsize>(head.size()))) {
    throw ConfigError(file + ": cannot read its first " + std::to_string(head.size()) + " bytes");
  }
  return count_tokens(std::as_bytes(std::span(head)), bytes, format, file);
}

}  // namespace

std::vector<std::string> match_shards(const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    for (const std::string& file : matches_of(pattern)) {
      std::error_code error;
      if (!std::filesystem::is_regular_file(file, error)) {
        throw ConfigError(file + ": matches " + pattern + ", but is no regular file");
      }
      if (const std::string name = comm::with_valid_utf8(file); name != file) {
        throw ConfigError(name + ": matches " + pattern +
                          ", but its name is not UTF-8; rename it, since specs list it");
      }
      files.push_back(normal_path(file));
    }
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

std::vector<ShardFile> look_at_shards(const std::vector<std::string>& files, ShardConfig::Content content,
                                      TokenFormat format, const std::string& manifest) {
  std::optional<std::map<std::string, ShardChecksum>> listed;
  if (!manifest.empty()) listed = read_shard_manifest(manifest);
  std::vector<ShardFile> shards;
  for (const std::string& file : files) {
    std::error_code error;
    ShardFile shard;
    shard.file = file;
    shard.bytes = std::filesystem::file_size(file, error);
    if (error) throw ConfigError(file + ": cannot read: " + error.message());
    if (listed) {
      const auto found = listed->find(normal_path(std::filesystem::absolute(file).string()));
      if (found == listed->end()) throw ConfigError(file + ": is not in the manifest " + manifest);
      if (found->second.bytes != shard.bytes) {
        throw ConfigError(file + ": " + std::to_string(shard.bytes) + " bytes, but " +
                          std::to_string(found->second.bytes) + " in the manifest " + manifest);
      }
      shard.crc32c = found->second.crc32c;
    }
    shard.tokens = count_tokens_of(file, shard.bytes, content, format);
    shards.push_back(shard);
  }
  return shards;
}

void list_shards(DataConfig& data) {
  ShardConfig& shards = *data.shards;
  const auto fill = [&](std::vector<ShardFile>& files, const std::vector<std::string>& patterns) {
    if (!files.empty() || patterns.empty()) return;
    files = look_at_shards(match_shards(patterns), shards.content, data.format, shards.manifest);
  };
  fill(shards.files, shards.patterns);
  fill(shards.validation_files, shards.validation_patterns);
}

}  // namespace droptest::experiments
