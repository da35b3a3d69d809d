// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/shard_manifest.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "comm/json/schema.h"
#include "experiments/files/crc32c.h"
#include "experiments/files/manifest.h"
#include "experiments/schema/schema_kinds.h"
#include "sim/error.h"

namespace droptest::experiments {

std::map<std::string, ShardChecksum> parse_shard_manifest(std::string_view text, const std::string& folder,
                                                          const std::string& where) {
  const nlohmann::json document = comm::parse_json(text, where);
  comm::require_valid(schema_of(SchemaKind::kShards), document, where);
  std::map<std::string, ShardChecksum> files;
  const nlohmann::json& list = document["files"];
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string file = list[i]["file"];
    const std::string path = normal_path((std::filesystem::path(folder) / file).string());
    const auto crc = static_cast<std::uint32_t>(std::stoul(list[i]["crc32c"].get<std::string>(), nullptr, 16));
    if (!files.insert({path, {list[i]["bytes"].get<std::uint64_t>(), crc}}).second) {
      throw ConfigError(where + ": /files/" + std::to_string(i) + "/file: got " + comm::quote_json(list[i]["file"]) +
                        " once more, want each file once");
    }
  }
  return files;
}

std::map<std::string, ShardChecksum> read_shard_manifest(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  return parse_shard_manifest(comm::read_file(path), folder.string(), path);
}

nlohmann::json make_shard_manifest(const std::vector<std::string>& files, const std::string& path) {
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  nlohmann::json list = nlohmann::json::array();
  std::vector<char> piece(kPieceBytes);
  for (const std::string& file : files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) throw ConfigError(file + ": cannot open");
    std::uint32_t crc = crc32c({});
    std::uint64_t bytes = 0;
    do {
      stream.read(piece.data(), static_cast<std::streamsize>(piece.size()));
      const auto got = static_cast<std::size_t>(stream.gcount());
      crc = crc32c_continued(crc, std::as_bytes(std::span(piece).first(got)));
      bytes += got;
    } while (stream);
    if (stream.bad()) throw ConfigError(file + ": cannot read beyond byte " + std::to_string(bytes));
    const std::string name = std::filesystem::absolute(file).lexically_relative(folder).string();
    list.push_back({{"file", name}, {"bytes", bytes}, {"crc32c", crc_text(crc)}});
  }
  return {{"schema_version", 1}, {"files", std::move(list)}};
}

std::string normal_path(const std::string& path) { return std::filesystem::path(path).lexically_normal().string(); }

}  // namespace droptest::experiments
