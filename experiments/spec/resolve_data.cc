// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/section_resolvers.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/data/example_set.h"
#include "experiments/data/sample_plan.h"
#include "experiments/data/sample_table.h"
#include "experiments/data/shard_list.h"
#include "experiments/data/shard_manifest.h"
#include "experiments/files/manifest.h"
#include "experiments/spec/read_resolved.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

class ShardResolver {
 public:
  explicit ShardResolver(Resolution& resolution)
      : resolution_(resolution),
        spec_(resolution.spec),
        data_(spec_["data"]),
        given_(resolution.given.at("data")),
        hashes_(resolution.files) {}

  void resolve() {
    if (!data_.contains("shards")) {
      refuse_members_of_shards();
      return;
    }
    if (data_.contains("sha256")) resolution_.report("/data/sha256", "got a hash of shards, want /data/manifest");
    if (data_.contains("validation_shards")) {
      if (given_.contains("validation_fraction")) {
        resolution_.report("/data/validation_fraction", "got " + quote_json(given_["validation_fraction"]) +
                                                            " and /data/validation_shards, want one of the two");
      }
      data_.erase("validation_fraction");
    } else if (data_.contains("validation_files")) {
      resolution_.report("/data/validation_files", "got a list, want none without /data/validation_shards");
    }
    check_retries();
    if (hashes_ != nullptr && is_readable("manifest")) {
      find("shards", &ShardConfig::patterns, "files");
      find("validation_shards", &ShardConfig::validation_patterns, "validation_files");
    }
    check_given("files");
    check_given("validation_files");
    check_disjoint();
  }

 private:
  void refuse_members_of_shards() {
    for (const char* member :
         {"validation_shards", "manifest", "shuffle", "lost_limit", "retries", "files", "validation_files"}) {
      if (given_.contains(member)) {
        resolution_.report(
            std::string("/data/") + member,
            "got " + quote_json(given_[member]) + ", which /data/shards alone has a use for, want it absent");
      }
      data_.erase(member);
    }
    if (data_.contains("tokens") && data_["format"] == "text") {
      resolution_.report("/data/format", R"(got "text", want it with /data/shards alone; /data/text names one text)");
    }
  }

  void check_retries() {
    const double seconds = data_["retries"]["backoff_seconds"].get<double>() *
                           (std::exp2(data_["retries"]["attempts"].get<double>() - 1) - 1);
    const double timeout = spec_["backend"]["timeout_seconds"].get<double>();
    if (seconds < timeout) return;
    resolution_.report("/data/retries", "got pauses of " + quote_json(json(seconds)) + " s in all, want less than " +
                                            quote_json(json(timeout)) +
                                            " s, /backend/timeout_seconds, for which the other ranks wait");
  }

  bool is_readable(const char* member) {
    if (!data_.contains(member)) return true;
    try {
      (void)read_shard_manifest(data_[member]);
      return true;
    } catch (const ConfigError& error) {
      resolution_.report(std::string("/data/") + member, error.what());
      return false;
    }
  }

  void find(const char* patterns, std::vector<std::string> ShardConfig::*member, const char* list) {
    if (!data_.contains(patterns)) return;
    try {
      DataConfig config;
      read_data(data_, config);
      const std::vector<std::string> names = match_shards((*config.shards).*member);
      json found = json::array();
      for (const ShardFile& file :
           look_at_shards(names, config.shards->content, config.format, config.shards->manifest)) {
        found.push_back({{"file", file.file}, {"bytes", file.bytes}, {"tokens", file.tokens}});
        if (file.crc32c) {
          found.back()["crc32c"] = crc_text(*file.crc32c);
        } else {
          // The version is read before the hash: a file that is replaced meanwhile is hashed again when it is opened.
          const FileVersion version = version_of(file.file).value_or(FileVersion{});
          found.back()["sha256"] = hashes_->of(file.file);
          found.back()["version"] = {{"inode", version.inode}, {"modified_nanoseconds", version.modified_nanoseconds}};
        }
      }
      compare(list, found);
      data_[list] = found;
    } catch (const ConfigError& error) {
      resolution_.report(std::string("/data/") + patterns, std::string(error.what()) + "; paths are relative to " +
                                                               std::filesystem::current_path().string());
    }
  }

  static json without_version(json file) {
    file.erase("version");
    return file;
  }

  /// Reports files that differ from the spec's list, if it has one.
  void compare(const char* list, const json& found) {
    if (!data_.contains(list)) return;
    const json& given = data_[list];
    const std::string pointer = std::string("/data/") + list;
    if (given.size() != found.size()) {
      resolution_.report(pointer, "got " + std::to_string(given.size()) + " files, but the patterns match " +
                                      std::to_string(found.size()) + "; want the files that were meant, or no list");
      return;
    }
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (without_version(given[i]) == without_version(found[i])) continue;
      resolution_.report(pointer + "/" + std::to_string(i), "got " + given[i].dump() + ", but there is " +
                                                                found[i].dump() +
                                                                "; want the file that was meant, or no list");
      return;
    }
  }

  void check_given(const char* list) {
    if (!data_.contains(list)) return;
    const std::uint64_t token_bytes = data_["format"] == "text" ? 1 : 2;
    for (std::size_t i = 0; i < data_[list].size(); ++i) {
      const json& file = data_[list][i];
      if (file["tokens"].get<std::uint64_t>() * token_bytes <= file["bytes"].get<std::uint64_t>()) continue;
      resolution_.report(std::string("/data/") + list + "/" + std::to_string(i) + "/tokens",
                         "got " + file["tokens"].dump() + " tokens in " + file["bytes"].dump() + " bytes, want " +
                             std::to_string(token_bytes) + " bytes for each token");
    }
  }

  /// Two names of one file, and copies of it, have one content.
  void check_disjoint() {
    if (!data_.contains("files") || !data_.contains("validation_files")) return;
    std::map<json, const json*> training;  // by name, and by content
    for (const json& file : data_["files"]) {
      training.emplace(file["file"], &file);
      if (file["tokens"] != 0) training.emplace(content_of(file), &file);
    }
    for (const json& file : data_["validation_files"]) {
      auto other = training.find(file["file"]);
      const bool is_same_name = other != training.end();
      if (!is_same_name && file["tokens"] != 0) other = training.find(content_of(file));
      if (other == training.end() || (!is_same_name && !has_same_hash(file, *other->second))) continue;
      const std::string name = file["file"];
      resolution_.report("/data/validation_shards",
                         is_same_name ? name + " matches /data/shards, too, want files that training does not read"
                                      : name + " has the content of " + (*other->second)["file"].get<std::string>() +
                                            ", which matches /data/shards, want files that training does not read");
      return;
    }
  }

  /// A key that equal contents share.
  static json content_of(const json& file) {
    if (file.contains("sha256")) return file["sha256"];
    return {file["bytes"], file.value("crc32c", "")};
  }

  /// Equal checksums of a manifest may be those of different contents.
  bool has_same_hash(const json& file, const json& other) {
    if (file.contains("sha256")) return true;
    if (hashes_ == nullptr || !file.contains("crc32c")) return false;
    try {
      return hashes_->of(file["file"]) == hashes_->of(other["file"]);
    } catch (const ConfigError& error) {
      resolution_.report("/data/validation_shards", error.what());
      return false;
    }
  }

  Resolution& resolution_;
  json& spec_;
  json& data_;
  const json& given_;
  FileHashes* hashes_;
};

void resolve_documents(Resolution& resolution, json& data) {
  constexpr int kEndOfText = 50256;
  if (data["documents"] == false) {
    data.erase("documents");
    if (!data.contains("end_of_text")) return;
    resolution.report("/data/end_of_text",
                      "got " + quote_json(data["end_of_text"]) + ", want it absent, or /data/documents true");
    return;
  }
  const bool is_text = data.contains("text") || data["format"] == "text";
  if (!data.contains("end_of_text") && !is_text) data["end_of_text"] = kEndOfText;
  if (!data.contains("end_of_text") || data["end_of_text"].get<int>() >= resolution.config.model.vocabulary) {
    resolution.report("/data/end_of_text",
                      (data.contains("end_of_text") ? "got " + quote_json(data["end_of_text"]) : "is missing") +
                          ", want a token below the vocabulary " + std::to_string(resolution.config.model.vocabulary) +
                          ", which ends each document");
    return;
  }
  resolution.config.model.attention.within = models::AttentionOptions::Within::kDocument;
}

}  // namespace

void resolve_data(Resolution& resolution) {
  json& data = resolution.spec["data"];
  const bool text_shards = data.contains("shards") && data["format"] == "text";
  const bool one_file = !data.contains("shards") && !data.contains("examples");
  if (one_file) resolution.take_hash("/data", data.contains("text") ? "text" : "tokens");
  ShardResolver(resolution).resolve();
  resolve_documents(resolution, data);
  resolve_examples(resolution);
  if (!resolution.has_errors() && resolution.files != nullptr) {
    check_stored_head(resolution);
    check_data_of_pretrained(resolution);
  }
  // A text has no layout of token files.
  if (data.contains("text")) data.erase("format");
  if ((data.contains("text") || text_shards) && resolution.config.model.vocabulary < 256) {
    resolution.report("/model/vocabulary", "got " + std::to_string(resolution.config.model.vocabulary) +
                                               ", want at least 256, a token for each byte of " +
                                               (text_shards ? "data.shards" : "data.text"));
  }
}

}  // namespace droptest::experiments
