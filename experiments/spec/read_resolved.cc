// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/read_resolved.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "comm/backend_registry.h"
#include "experiments/spec/section_members.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// Absent: an empty list.
std::vector<ShardFile> shard_files(const json& data, const char* member) {
  std::vector<ShardFile> files;
  for (const json& file : data.value(member, json::array())) {
    ShardFile& added = files.emplace_back();
    read_members(file, added);
    if (file.contains("version")) {
      const json& version = file["version"];
      added.hashed = FileVersion{version["inode"], added.bytes, version["modified_nanoseconds"]};
    }
    if (!file.contains("crc32c")) continue;
    added.crc32c = static_cast<std::uint32_t>(std::stoul(file["crc32c"].get<std::string>(), nullptr, 16));
  }
  return files;
}

std::optional<comm::Rendezvous> rendezvous_of(const json& rendezvous) {
  const std::string kind = rendezvous["kind"].get<std::string>();
  if (kind == "auto") return std::nullopt;
  comm::Rendezvous result;
  if (kind == "file") {
    result.kind = comm::Rendezvous::Kind::kFile;
    result.directory = rendezvous.value("directory", "");
  } else {
    result.kind = kind == "redis" ? comm::Rendezvous::Kind::kRedis : comm::Rendezvous::Kind::kTcp;
    result.host = rendezvous.value("host", "");
    result.port = rendezvous.contains("port") ? rendezvous["port"].get<int>() : 0;
  }
  return result;
}

}  // namespace

void read_data(const json& data, DataConfig& config) {
  read_members(data, config);
  if (data.contains("examples")) read_members(data, config.examples.emplace());
  if (!data.contains("shards")) return;
  ShardConfig& shards = config.shards.emplace();
  read_members(data, shards);
  shards.files = shard_files(data, "files");
  shards.validation_files = shard_files(data, "validation_files");
}

void read_resolved(const json& spec, RunConfig& config) {
  read_members(spec, config);
  read_data(spec["data"], config.data);
  (void)comm::backend_entry(config.backend.name);
  config.backend.rendezvous = rendezvous_of(spec["backend"]["rendezvous"]);
  for (AlertConfig& alert : config.alerts) {
    if (!alert.command.empty()) alert.action = AlertConfig::Action::kCommand;
  }
  const bool loses_shards = config.failures && !config.failures->replicas.empty() &&
                            config.failures->replicas.front().reload_step.has_value();
  if (config.elastic || loses_shards) config.full_data = config.parallel.data;
}

}  // namespace droptest::experiments
