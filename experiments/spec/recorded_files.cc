// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/recorded_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/json/json_text.h"
#include "comm/json/schema.h"
#include "experiments/data/file_version.h"
#include "experiments/data/pretrained_folder.h"
#include "experiments/data/vocabulary.h"
#include "experiments/spec/pretrained_checks.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// A file with the hash that a spec has of it.
struct RecordedFile {
  std::string pointer;  ///< the pointer of the member with the file's name
  std::string file;
  std::string hash_pointer;
  std::string sha256;
  enum class Need : std::uint8_t { kAlways, kAtTheStart } need = Need::kAlways;
};

std::vector<RecordedFile> files_of(const json& spec) {
  using Need = RecordedFile::Need;
  std::vector<RecordedFile> files;
  const auto add = [&](const std::string& section, const char* name, const char* hash, Need need) {
    const json::json_pointer path(section);
    if (!spec.contains(path)) return;
    const json& members = spec.at(path);
    if (!members.is_object() || !members.contains(name) || !members.contains(hash)) return;
    files.push_back({section + "/" + name, members[name], section + "/" + hash, members[hash], need});
  };
  for (const char* name : {"text", "tokens", "examples"}) add("/data", name, "sha256", Need::kAlways);
  add("/data", "validation_examples", "validation_sha256", Need::kAlways);
  add("/model", "weights", "sha256", Need::kAtTheStart);
  add("/start", "manifest", "sha256", Need::kAtTheStart);
  for (std::size_t i = 0; i < spec.value("files", json::array()).size(); ++i) {  // files of a command
    add("/files/" + std::to_string(i), "file", "sha256", Need::kAlways);
  }
  const json kernels = spec.value("kernels", json::object());
  for (const auto& [operation, ignored] : kernels.items()) {
    add("/kernels/" + operation, "library", "sha256", Need::kAlways);
  }
  return files;
}

/// The folder of a spec with /model/pretrained.
PretrainedFolder folder_of(const json& spec) {
  const bool classifies = spec.value("task", "language_modelling") == "classification";
  return read_pretrained_folder(spec.at("model").at("pretrained"),
                                classifies ? FolderHead::kClassification : FolderHead::kLanguageModel);
}

class Comparison {
 public:
  Comparison(const std::string& where, FileHashes& files) : where_(where), files_(files) {}

  void compare(const RecordedFile& one) {
    if (one.need == RecordedFile::Need::kAtTheStart && !std::filesystem::exists(one.file)) return;
    try {
      compare(one.hash_pointer, one.sha256, one.file, files_.of(one.file));
    } catch (const ConfigError& error) {
      report(one.pointer,
             std::string(error.what()) + "; paths are relative to " + std::filesystem::current_path().string());
    }
  }

  void compare_pretrained(const json& spec) {
    const json& model = spec.at("model");
    const std::string folder = model.at("pretrained");
    if (!model.contains("sha256") || !std::filesystem::exists(folder)) return;
    try {
      compare("/model/sha256", model["sha256"], "the weights in " + folder, weights_hash_of(folder_of(spec), files_));
      const std::optional<Vocabulary> vocabulary = read_vocabulary(folder);
      if (vocabulary && model.contains("vocabulary_sha256")) {
        compare("/model/vocabulary_sha256", model["vocabulary_sha256"], "the tokenizer in " + folder,
                vocabulary->hash());
      }
    } catch (const ConfigError& error) {
      report("/model/pretrained", error.what());
    }
  }

  /// A file is not read if it is the one that was hashed.
  void compare_shards(const std::vector<ShardFile>& shards, const std::string& pointer) {
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const ShardFile& shard = shards[i];
      const std::string place = pointer + "/" + std::to_string(i);
      const std::optional<FileVersion> version = version_of(shard.file);
      if (!version) {
        report(place + "/file", "got " + comm::quote_json(json(shard.file)) +
                                    ", but there is no such file; paths are " + "relative to " +
                                    std::filesystem::current_path().string());
      } else if (version->bytes != shard.bytes) {
        report(place + "/bytes", "got " + std::to_string(shard.bytes) + ", but " + shard.file + " has " +
                                     std::to_string(version->bytes) + kRemedy);
      } else if (!shard.sha256.empty() && version != shard.hashed) {
        compare({place + "/file", shard.file, place + "/sha256", shard.sha256});
      }
    }
  }

  const std::vector<std::string>& errors() const { return errors_; }

 private:
  static constexpr const char* kRemedy =
      ": the run began with another content; put that file back, or train the new one as a run of its own, from its "
      "spec";

  void compare(const std::string& pointer, const std::string& recorded, const std::string& what,
               const std::string& found) {
    if (found == recorded) return;
    report(pointer, "got \"" + recorded + "\", but " + what +
                        (what.starts_with("the weights") ? " have \"" : " has \"") + found + "\"" + kRemedy);
  }

  void report(const std::string& pointer, const std::string& message) {
    errors_.push_back(where_ + ": " + pointer + ": " + message);
  }

  const std::string& where_;
  FileHashes& files_;
  std::vector<std::string> errors_;
};

}  // namespace

std::vector<std::string> recorded_files(const json& resolved_spec) {
  std::vector<std::string> paths;
  for (const RecordedFile& one : files_of(resolved_spec)) paths.push_back(one.file);
  const json model = resolved_spec.value("model", json::object());
  if (model.contains("pretrained") && model.contains("sha256")) {
    try {
      const PretrainedFolder folder = folder_of(resolved_spec);
      paths.insert(paths.end(), folder.weights.begin(), folder.weights.end());
    } catch (const ConfigError&) {
      // The comparison says so.
    }
  }
  return paths;
}

void require_recorded_files(const ResolvedRun& run, const std::string& where, FileHashes& files, ShardFiles shards) {
  Comparison comparison(where, files);
  for (const RecordedFile& one : files_of(run.spec)) comparison.compare(one);
  if (run.spec.value("model", json::object()).contains("pretrained")) comparison.compare_pretrained(run.spec);
  const std::optional<ShardConfig>& of_run = run.config.data.shards;
  if (of_run && shards == ShardFiles::kCompared && of_run->lost_limit == 0) {
    comparison.compare_shards(of_run->files, "/data/files");
    comparison.compare_shards(of_run->validation_files, "/data/validation_files");
  }
  comm::require_none(comparison.errors());
}

}  // namespace droptest::experiments
