// SPDX-License-Identifier: Apache-2.0
// Runs of a small model with checkpoints in a folder, for tests of resuming.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/run_ranks.h"
#include "experiments/spec/resolve.h"
#include "experiments/training/trainer.h"
#include "experiments/training/training_data.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments {

/// The text of all runs.
inline const std::string& text_file() {
  static const TemporaryFolder folder;
  static const std::string path = [] {
    std::string name = folder.path() + "/text";
    std::ofstream file(name);
    for (int i = 0; i < 1500; ++i) file << "line " << i * i % 97 << " of a text; ";
    return name;
  }();
  return path;
}

/// A run with two tensor-parallel ranks, 5 % loss in bursts and a checkpoint after each step, with `changes`.
inline ResolvedRun resolved_run(const nlohmann::json& changes, std::uint64_t steps) {
  nlohmann::json spec = {
      {"name", "resume"},
      {"seed", 5},
      {"model", {{"layers", 2}, {"width", 16}, {"heads", 2}, {"context", 16}, {"vocabulary", 256}}},
      {"data", {{"text", text_file()}}},
      {"parallel", {{"tensor", 2}}},
      {"network",
       {{"path", "direct"},
        {"payload_bytes", 64},
        {"loss", {{"model", "gilbert_elliott"}, {"loss_rate", "5%"}, {"mean_burst_packets", 3}}}}},
      {"training", {{"steps", steps}, {"batch_sequences", 2}, {"sequence_tokens", 16}, {"warmup_steps", 3}}},
      {"validation", {{"every_steps", 5}, {"tokens", 128}}},
      {"record", {{"every_steps", 1}, {"sample_every_steps", 4}, {"weights", "final"}, {"links", "include"}}},
      {"checkpoint", {{"every_steps", 1}, {"keep", 1000}, {"async", false}}}};
  spec.merge_patch(changes);
  return resolve(spec, "spec.json");
}

struct ResumedRun {
  TrainingOutcome outcome;            ///< outcome of rank 0
  std::vector<nlohmann::json> lines;  ///< comparable_line() of each line
  std::optional<std::uint64_t> resumed;
};

/// A line without wall time and use of the machine.
inline nlohmann::json comparable_line(const MetricsLine& line) {
  nlohmann::json comparable = to_json_line(line);
  comparable.erase("seconds");
  comparable.erase("ranks");
  return comparable;
}

/// Resumes from the newest checkpoint of the folder. This function replaces `on_start` of `hooks`; `on_line` is called
/// after the result has the line.
inline ResumedRun train_in(const ResolvedRun& run, const std::string& checkpoints, TrainingHooks hooks = {}) {
  ResumedRun result;
  const Corpus corpus = load_corpus(run.config);
  hooks.on_start = [&result](std::optional<std::uint64_t> step) { result.resumed = step; };
  hooks.on_line = [&result, passed_on = std::move(hooks.on_line)](const MetricsLine& line) {
    result.lines.push_back(comparable_line(line));
    passed_on(line);
  };
  hooks.on_checkpoint_error = [](std::uint64_t step, const std::string& error) { FAIL() << step << ": " << error; };
  hooks.checkpoints = CheckpointPlace{checkpoints, "resume", run.run_id, std::string(64, '0')};
  comm::run_ranks(run.config.parallel.world_size(), std::chrono::seconds(60), [&](comm::Communicator& group) {
    TrainingOutcome outcome = train(run.config, corpus, group, hooks);
    if (group.rank() == 0) result.outcome = std::move(outcome);
  });
  return result;
}

}  // namespace droptest::experiments
