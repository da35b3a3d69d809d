// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/json/json_text.h"
#include "comm/spec/sha256.h"
#include "experiments/data/pretrained_folder.h"
#include "experiments/data/shard_list.h"
#include "experiments/data/token_sidecar.h"
#include "experiments/data/vocabulary.h"
#include "experiments/files/weights_file.h"
#include "experiments/spec/pretrained_checks.h"
#include "experiments/spec/section_resolvers.h"
#include "models/gpt2/gpt2_tensors.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

class PretrainedResolver {
 public:
  explicit PretrainedResolver(Resolution& resolution)
      : resolution_(resolution),
        spec_(resolution.spec),
        model_(spec_["model"]),
        given_(resolution.given),
        files_(resolution.files) {}

  void resolve() {
    const std::string folder = model_["pretrained"];
    for (const char* other : {"preset", "weights"}) {
      if (!given_.value("model", json::object()).contains(other)) continue;
      report(other, "got " + quote_json(model_[other]) + " and /model/pretrained, want one of the two");
    }
    if (resolution_.has_errors()) return;
    bool knows_extents = true;
    models::Gpt2Config().visit_members(
        [&](const char* name, int /*value*/) { knows_extents = knows_extents && model_.contains(name); });
    if (files_ == nullptr && knows_extents) return;
    try {
      const bool classifies = spec_.value("task", "language_modelling") == "classification";
      PretrainedFolder found =
          read_pretrained_folder(folder, classifies ? FolderHead::kClassification : FolderHead::kLanguageModel);
      found.model.visit_members([&](const char* name, int value) { take(name, value, folder + "/config.json"); });
      if (files_ == nullptr) return;
      take("sha256", weights_hash_of(found, *files_), "the weights in " + folder);
      const std::optional<Vocabulary> vocabulary = read_vocabulary(folder);
      if (!vocabulary || vocabulary->hash().empty()) return;
      take("vocabulary_sha256", vocabulary->hash(), "the tokenizer in " + folder);
      if (vocabulary->size() > found.model.vocabulary) {
        report("pretrained", folder + ": its tokenizer has tokens up to " + std::to_string(vocabulary->size() - 1) +
                                 ", want them below vocab_size " + std::to_string(found.model.vocabulary));
      }
    } catch (const ConfigError& error) {
      report("pretrained",
             std::string(error.what()) + "; paths are relative to " + std::filesystem::current_path().string());
    }
  }

 private:
  void report(const char* member, const std::string& message) {
    resolution_.report(std::string("/model/") + member, message);
  }

  /// A value of the folder: the spec may have the same.
  void take(const char* member, const json& value, const std::string& source) {
    if (model_.contains(member) && model_[member] != value) {
      report(member, "got " + quote_json(model_[member]) + ", but " + source + " has " + quote_json(value) +
                         "; leave this member out");
    }
    model_[member] = value;
  }

  Resolution& resolution_;
  json& spec_;
  json& model_;
  const json& given_;
  FileHashes* files_;
};

}  // namespace

void resolve_pretrained(Resolution& resolution) {
  const json& model = resolution.spec["model"];
  if (model.contains("pretrained")) {
    PretrainedResolver(resolution).resolve();
  } else if (model.contains("vocabulary_sha256")) {
    resolution.report("/model/vocabulary_sha256", "got a hash without a folder, want no hash");
  }
}

}  // namespace droptest::experiments
