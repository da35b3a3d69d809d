// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve_data.h"

#include <algorithm>
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

constexpr std::uint64_t kMostSteps = 1'000'000'000'000;  // the schema's

/// Collects the errors of a section.
class Reporter {
 public:
  Reporter(const std::string& where, std::vector<std::string>& errors) : where_(where), errors_(errors) {}
  void report(const std::string& pointer, const std::string& message) {
    errors_.push_back(where_ + ": " + pointer + ": " + message);
  }

 private:
  const std::string& where_;
  std::vector<std::string>& errors_;
};

class ShardResolver {
 public:
  ShardResolver(json& spec, const json& given, FileHashes* hashes, Reporter reporter)
      : spec_(spec), data_(spec["data"]), given_(given.at("data")), hashes_(hashes), reporter_(reporter) {}

  void resolve() {
    if (!data_.contains("shards")) {
      refuse_members_of_shards();
      return;
    }
    if (data_.contains("sha256")) reporter_.report("/data/sha256", "got a hash of shards, want /data/manifest");
    if (data_.contains("validation_shards")) {
      if (given_.contains("validation_fraction")) {
        reporter_.report("/data/validation_fraction", "got " + quote_json(given_["validation_fraction"]) +
                                                          " and /data/validation_shards, want one of the two");
      }
      data_.erase("validation_fraction");
    } else if (data_.contains("validation_files")) {
      reporter_.report("/data/validation_files", "got a list, want none without /data/validation_shards");
    }
    check_retries();
    if (hashes_ != nullptr && is_readable("manifest")) {
      find("shards", "files");
      find("validation_shards", "validation_files");
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
        reporter_.report(
            std::string("/data/") + member,
            "got " + quote_json(given_[member]) + ", which /data/shards alone has a use for, want it absent");
      }
      data_.erase(member);
    }
    if (data_.contains("tokens") && data_["format"] == "text") {
      reporter_.report("/data/format", R"(got "text", want it with /data/shards alone; /data/text names one text)");
    }
  }

  void check_retries() {
    const double seconds = data_["retries"]["backoff_seconds"].get<double>() *
                           (std::exp2(data_["retries"]["attempts"].get<double>() - 1) - 1);
    const double timeout = spec_["backend"]["timeout_seconds"].get<double>();
    if (seconds < timeout) return;
    reporter_.report("/data/retries", "got pauses of " + quote_json(json(seconds)) + " s in all, want less than " +
                                          quote_json(json(timeout)) +
                                          " s, /backend/timeout_seconds, for which the other ranks wait");
  }

  bool is_readable(const char* member) {
    if (!data_.contains(member)) return true;
    try {
      (void)read_shard_manifest(data_[member]);
      return true;
    } catch (const ConfigError& error) {
      reporter_.report(std::string("/data/") + member, error.what());
      return false;
    }
  }

  void find(const char* patterns, const char* list) {
    if (!data_.contains(patterns)) return;
    try {
      DataConfig config;
      read_data(data_, config);
      const std::vector<std::string> names = match_shards(file_patterns(data_, patterns));
      json found = json::array();
      for (const ShardFile& file :
           look_at_shards(names, config.shards->content, config.format, config.shards->manifest)) {
        found.push_back({{"file", file.file}, {"bytes", file.bytes}, {"tokens", file.tokens}});
        if (file.crc32c) {
          found.back()["crc32c"] = crc_text(*file.crc32c);
        } else {
          // Of before the hash: a file that is replaced meanwhile is hashed once more when it is opened.
          const FileVersion version = version_of(file.file).value_or(FileVersion{});
          found.back()["sha256"] = hashes_->of(file.file);
          found.back()["version"] = {{"inode", version.inode}, {"modified_nanoseconds", version.modified_nanoseconds}};
        }
      }
      compare(list, found);
      data_[list] = found;
    } catch (const ConfigError& error) {
      reporter_.report(std::string("/data/") + patterns, std::string(error.what()) + "; paths are relative to " +
                                                             std::filesystem::current_path().string());
    }
  }

  static json without_version(json file) {
    file.erase("version");
    return file;
  }

  /// The files that are there are those that the spec lists, where it lists any.
  void compare(const char* list, const json& found) {
    if (!data_.contains(list)) return;
    const json& given = data_[list];
    const std::string pointer = std::string("/data/") + list;
    if (given.size() != found.size()) {
      reporter_.report(pointer, "got " + std::to_string(given.size()) + " files, but the patterns match " +
                                    std::to_string(found.size()) + "; want the files that were meant, or no list");
      return;
    }
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (without_version(given[i]) == without_version(found[i])) continue;
      reporter_.report(pointer + "/" + std::to_string(i), "got " + given[i].dump() + ", but there is " +
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
      reporter_.report(std::string("/data/") + list + "/" + std::to_string(i) + "/tokens",
                       "got " + file["tokens"].dump() + " tokens in " + file["bytes"].dump() + " bytes, want " +
                           std::to_string(token_bytes) + " bytes for each token");
    }
  }

  /// Names of one file and copies of it have one content.
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
      reporter_.report("/data/validation_shards",
                       is_same_name ? name + " matches /data/shards, too, want files that training does not read"
                                    : name + " has the content of " + (*other->second)["file"].get<std::string>() +
                                          ", which matches /data/shards, want files that training does not read");
      return;
    }
  }

  /// Equal for equal contents.
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
      reporter_.report("/data/validation_shards", error.what());
      return false;
    }
  }

  json& spec_;
  json& data_;
  const json& given_;
  FileHashes* hashes_;
  Reporter reporter_;
};

}  // namespace

void resolve_shards(json& spec, const json& given, const std::string& where, FileHashes* files,
                    std::vector<std::string>& errors) {
  ShardResolver(spec, given, files, Reporter(where, errors)).resolve();
}

void resolve_epochs(json& spec, const json& given, const std::string& where, int replicas,
                    std::vector<std::string>& errors) {
  Reporter reporter(where, errors);
  json& training = spec["training"];
  const json of_training = given.value("training", json::object());
  const bool examples = spec["data"].contains("examples");
  if (!spec["data"].contains("shards") && !examples) {
    for (const char* member : {"epochs", "drop_last"}) {
      if (of_training.contains(member)) {
        reporter.report(std::string("/training/") + member,
                        "got " + quote_json(of_training[member]) +
                            ", want it absent, /data/shards or /data/examples: training reads one file at random "
                            "places");
      }
    }
    training.erase("drop_last");
    return;
  }
  if (training["drop_last"] == false) training.erase("drop_last");
  const bool has_epochs = training.contains("epochs");
  DataConfig data;
  read_data(spec["data"], data);
  const bool is_listed = !examples && !data.shards->files.empty();
  const bool drops = training.contains("drop_last");
  if (!errors.empty() || (!is_listed && !has_epochs && !(examples && drops))) return;
  std::uint64_t of_examples = 0;
  if (!is_listed) {
    try {
      if (examples) {
        of_examples = count_training_examples(*data.examples, data.validation_fraction);
      } else {
        list_shards(data);
      }
    } catch (const ConfigError&) {
      // A spec may be checked where its files are not: then so many steps that its schedule fits.
      const std::uint64_t warmup = training["warmup_steps"].get<std::uint64_t>();
      const json& schedule = training["schedule"];
      const std::uint64_t decay = schedule.is_object() ? schedule.value("decay_steps", std::uint64_t{0}) : 0;
      training["steps"] = std::max(training["steps"].get<std::uint64_t>(), std::min(kMostSteps, warmup + decay + 1));
      return;
    }
  }
  try {
    const std::uint64_t samples = examples ? of_examples
                                           : SampleTable(data.shards->files, data.shards->token_bytes(),
                                                         held_out_tokens(*data.shards, data.validation_fraction),
                                                         training["sequence_tokens"].get<int>())
                                                 .samples();
    const std::uint64_t batch = training["batch_sequences"].get<std::uint64_t>() *
                                training["accumulation"].get<std::uint64_t>() * static_cast<std::uint64_t>(replicas);
    const std::string samples_text =
        std::to_string(samples) + " samples in global batches of " + std::to_string(batch) + " sequences";
    SamplePlan::Rules rules;
    rules.last_batch = training.contains("drop_last") ? LastBatch::kDropped : LastBatch::kTrained;
    if (rules.last_batch == LastBatch::kDropped && batch > samples) {
      reporter.report("/training/drop_last", "got true with " + samples_text + ", which leaves nothing to train on");
      return;
    }
    if (!has_epochs) return;
    rules.epochs = training["epochs"].get<std::uint64_t>();
    if (samples / batch > kMostSteps / rules.epochs - 1) {
      reporter.report("/training/epochs", "got " + training["epochs"].dump() + " of " + samples_text +
                                              ", want at most " + std::to_string(kMostSteps) + " steps");
      return;
    }
    const std::uint64_t steps = *SamplePlan(rules, samples, batch).steps_left(0);
    // A run that starts from a checkpoint may have had other global batches: it ends with its data.
    if (spec.contains("start") && of_training.contains("steps")) return;
    if (of_training.contains("steps") && of_training["steps"] != steps) {
      reporter.report("/training/steps", "got " + quote_json(of_training["steps"]) + ", but /training/epochs " +
                                             training["epochs"].dump() + " of " + samples_text + " are " +
                                             std::to_string(steps) + " steps; want one of the two members");
    }
    training["steps"] = steps;
  } catch (const ConfigError& error) {
    reporter.report("/data/shards", error.what());
  }
}

void resolve_schedule(json& spec, const json& given, const std::string& where, std::vector<std::string>& errors) {
  Reporter reporter(where, errors);
  json& training = spec["training"];
  const json of_training = given.value("training", json::object());
  json& schedule = training["schedule"];
  if (schedule.is_string()) schedule = {{"kind", schedule}};
  const std::string kind = schedule["kind"];
  const std::map<std::string, std::string> owners = {{"decay_steps", "warmup_stable_decay"}, {"points", "table"}};
  for (const auto& [member, owner] : owners) {
    if (kind == owner || !schedule.contains(member)) continue;
    reporter.report("/training/schedule/" + member, "got " + quote_json(schedule[member]) + ", which \"" + kind +
                                                        "\" has no use for, want it absent, or kind \"" + owner + "\"");
  }
  const auto steps = training["steps"].get<std::uint64_t>();
  const auto warmup = training["warmup_steps"].get<std::uint64_t>();
  const double peak = training["learning_rate"].get<double>();
  if (warmup >= steps) {
    reporter.report("/training/warmup_steps", "got " + quote_json(training["warmup_steps"]) +
                                                  ", want less than steps, " + quote_json(training["steps"]) +
                                                  ": the learning rate would never reach its peak");
    return;
  }
  const auto end_at = [&](double rate) {
    if (training.contains("final_learning_rate") && training["final_learning_rate"] != rate) {
      reporter.report("/training/final_learning_rate", "got " + quote_json(training["final_learning_rate"]) +
                                                           ", but the schedule \"" + kind + "\" ends at " +
                                                           quote_json(json(rate)) + ", want it absent");
    }
    training["final_learning_rate"] = rate;
  };
  if (kind == "table") {
    if (!schedule.contains("points")) {
      reporter.report("/training/schedule/points", "got nothing, want the points of the table");
      return;
    }
    const json& points = schedule["points"];
    for (std::size_t i = 1; i < points.size(); ++i) {
      if (points[i]["step"].get<std::uint64_t>() > points[i - 1]["step"].get<std::uint64_t>()) continue;
      reporter.report("/training/schedule/points/" + std::to_string(i) + "/step",
                      "got " + quote_json(points[i]["step"]) + ", want more than the " +
                          quote_json(points[i - 1]["step"]) + " of the point before");
    }
    if (warmup != 0) {
      reporter.report("/training/warmup_steps", "got " + quote_json(training["warmup_steps"]) +
                                                    ", want 0 with a table, whose points have the warm-up, too");
    }
    end_at(peak * points.back()["factor"].get<double>());
  } else if (kind == "constant") {
    end_at(peak);
  } else if (!training.contains("final_learning_rate")) {
    training["final_learning_rate"] = peak / 10;
  }
  if (kind == "warmup_stable_decay") {
    const std::uint64_t most = steps - warmup;
    if (!schedule.contains("decay_steps")) schedule["decay_steps"] = std::max<std::uint64_t>(1, most / 10);
    if (schedule["decay_steps"].get<std::uint64_t>() > most) {
      reporter.report("/training/schedule/decay_steps", "got " + quote_json(schedule["decay_steps"]) +
                                                            ", want at most the " + std::to_string(most) +
                                                            " steps after the warm-up");
    }
  } else if (kind != "table") {
    schedule = kind;
  }
  if (kind == "cosine") training.erase("schedule");
}

}  // namespace droptest::experiments
