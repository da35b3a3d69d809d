// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/section_resolvers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>

#include "experiments/spec/pipeline_plan.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

class FailuresResolver {
 public:
  explicit FailuresResolver(Resolution& resolution)
      : resolution_(resolution), spec_(resolution.spec), failures_(spec_["failures"]), config_(resolution.config) {}

  void resolve() {
    if (failures_.contains("stages")) resolve_stages();
    if (failures_.contains("replicas")) resolve_replicas();
  }

 private:
  void report(const std::string& pointer, const std::string& message) {
    resolution_.report("/failures/" + pointer, message);
  }

  void resolve_stages() {
    if (failures_["stages"]["rate"] == 0) {
      failures_.erase("stages");
      return;
    }
    const comm::ParallelLayout& layout = config_.parallel;
    const auto refuse = [this](const std::string& why) { report("stages", "got failures of stages with " + why); };
    if (layout.pipeline < 3) {
      refuse("/parallel/pipeline " + std::to_string(layout.pipeline) +
             ", want at least 3: the first and the last stage do not fail");
    } else if (std::vector<int> ranks = pipeline_schedule(config_).rank_of_stage();
               static_cast<int>(ranks.size()) != layout.pipeline || !std::ranges::is_sorted(ranks)) {
      refuse("another placement than stage s on rank s of the pipeline, want that one");
    } else if (layout.data > 1) {
      refuse("/parallel/data " + std::to_string(layout.data) +
             ", want 1: a stage of one replica would have the weights of another's");
    }
  }

  void resolve_replicas() {
    const bool shards = config_.sharding.shards_state();
    const std::uint64_t every = spec_.value(json::json_pointer("/checkpoint/every_steps"), std::uint64_t{0});
    if (shards && every == 0) {
      report("replicas", "got absences of replicas with /parallel/zero " + std::to_string(config_.sharding.zero) +
                             " and without /checkpoint/every_steps, want checkpoints: a replica that leaves takes its "
                             "shards of the state along, and the others go on from the last checkpoint");
      return;
    }
    const auto steps = spec_["training"]["steps"].get<std::uint64_t>();
    const int data = config_.parallel.data;
    json& replicas = failures_["replicas"];
    std::map<int, std::vector<std::size_t>> of_replica;
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      json& absence = replicas[i];
      const std::string pointer = "replicas/" + std::to_string(i);
      const int replica = absence["data_rank"].get<int>();
      const auto from = absence["from"].get<std::uint64_t>();
      if (replica >= data) {
        report(pointer + "/data_rank",
               "got " + std::to_string(replica) + " with /parallel/data " + std::to_string(data) +
                   (data < 2 ? ", want at least two replicas" : ", want 1 to " + std::to_string(data - 1)));
      }
      if (from > steps) {
        report(pointer + "/from",
               "got " + std::to_string(from) + ", want at most " + std::to_string(steps) + ", the last step");
      }
      if (absence.contains("until") && absence["until"].get<std::uint64_t>() <= from) {
        report(pointer + "/until", "got " + absence["until"].dump() + ", want a step after " + std::to_string(from) +
                                       ", the first without");
      }
      if (absence.contains("until") && absence["until"].get<std::uint64_t>() > steps) absence.erase("until");
      of_replica[replica].push_back(i);
    }
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      json& absence = replicas[i];
      const std::string pointer = "replicas/" + std::to_string(i);
      if (shards) {
        resolve_reload(absence, pointer, every);
      } else if (absence.contains("reload_step")) {
        report(pointer + "/reload_step", "got " + absence["reload_step"].dump() +
                                             " with /parallel/zero 0, want none: each replica has all of the state");
      }
    }
    for (auto& [replica, absences] : of_replica) {
      const auto from = [&replicas](std::size_t i) {
        const json& absence = replicas[i];
        if (absence.contains("reload_step")) return absence["reload_step"].get<std::uint64_t>() + 1;
        return absence["from"].get<std::uint64_t>();
      };
      std::ranges::stable_sort(absences, {}, from);
      for (std::size_t i = 1; i < absences.size(); ++i) {
        const json& before = replicas[absences[i - 1]];
        if (before.contains("until") && before["until"].get<std::uint64_t>() < from(absences[i])) continue;
        report("replicas/" + std::to_string(absences[i]),
               "got an absence from step " + std::to_string(from(absences[i])) + " that begins before replica " +
                   std::to_string(replica) + " is back, want one absence for both, or a step between them");
      }
    }
    std::stable_sort(replicas.begin(), replicas.end(), [](const json& a, const json& b) {
      return std::pair(a["from"].get<std::uint64_t>(), a["data_rank"].get<int>()) <
             std::pair(b["from"].get<std::uint64_t>(), b["data_rank"].get<int>());
    });
  }

  /// The others go on from the last checkpoint before the replica leaves. There is one whenever a replica comes back.
  void resolve_reload(json& absence, const std::string& pointer, std::uint64_t every) {
    const auto from = absence["from"].get<std::uint64_t>();
    const std::uint64_t begin = spec_.value(json::json_pointer("/start/step"), std::uint64_t{0});
    std::uint64_t last = (from - 1) / every * every;
    for (const json& other : failures_["replicas"]) {
      const std::uint64_t until = other.value("until", from + 1);
      if (until <= from) last = std::max(last, until - 1);
    }
    if (!absence.contains("reload_step")) {
      if (last <= begin) {
        report(pointer + "/from", "got " + std::to_string(from) +
                                      ", want a step after the first checkpoint, at least " +
                                      std::to_string(begin / every * every + every + 1) +
                                      " with /checkpoint/every_steps " + std::to_string(every));
      }
      absence["reload_step"] = last;
    } else if (const auto step = absence["reload_step"].get<std::uint64_t>(); step >= from || step <= begin) {
      report(pointer + "/reload_step", "got " + std::to_string(step) + ", want " + std::to_string(begin + 1) + " to " +
                                           std::to_string(from - 1) + ", a step before the one at which it leaves");
    }
  }

  Resolution& resolution_;
  json& spec_;
  json& failures_;
  const RunConfig& config_;
};

}  // namespace

void resolve_failures(Resolution& resolution) {
  json& spec = resolution.spec;
  if (!spec.contains("failures")) return;
  FailuresResolver(resolution).resolve();
  if (spec["failures"].empty()) spec.erase("failures");
}

void resolve_elastic(Resolution& resolution) {
  json& spec = resolution.spec;
  if (!spec.contains("elastic")) return;
  json& elastic = spec["elastic"];
  const int data = resolution.config.parallel.data;
  if (!elastic.contains("max_data")) elastic["max_data"] = data;
  const auto report = [&](const std::string& pointer, const std::string& message) {
    resolution.report("/elastic" + pointer, message);
  };
  if (elastic["min_data"].get<int>() > data) {
    report("/min_data", "got " + elastic["min_data"].dump() + ", want at most " + std::to_string(data) +
                            ", the replicas of /parallel/data");
  }
  if (elastic["max_data"].get<int>() < data) {
    report("/max_data", "got " + elastic["max_data"].dump() + ", want at least " + std::to_string(data) +
                            ", the replicas of /parallel/data");
  }
  if (!spec.contains("checkpoint") || spec["checkpoint"]["every_steps"] == 0) {
    report("", "got an elastic run without /checkpoint/every_steps, want checkpoints, from which it goes on");
  }
  if (spec.contains("failures")) {
    report("", "got an elastic run with /failures, want one of the two: their ranks would change");
  }
  if (!spec.contains("restart")) spec["restart"] = {{"attempts", 3}, {"backoff_seconds", 1}};
}

}  // namespace droptest::experiments
