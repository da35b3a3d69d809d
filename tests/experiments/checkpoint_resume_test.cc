// SPDX-License-Identifier: Apache-2.0
// Runs that are interrupted after some step and continue from its checkpoint, against runs that are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/json/json_text.h"
#include "comm/run_ranks.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/records/run_records.h"
#include "experiments/run/trainer.h"
#include "experiments/spec/resolve.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// The text of all runs.
const std::string& text_file() {
  static const TemporaryFolder folder;
  static const std::string path = [] {
    std::string name = folder.path() + "/text";
    std::ofstream file(name);
    for (int i = 0; i < 1500; ++i) file << "line " << i * i % 97 << " of a text; ";
    return name;
  }();
  return path;
}

ResolvedRun resolved_run(const json& changes, std::uint64_t steps) {
  json spec = {{"name", "resume"},
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

struct Result {
  TrainingOutcome outcome;  ///< of rank 0
  std::vector<json> lines;  ///< without wall time and use of the machine
  std::optional<std::uint64_t> resumed;
};

Result train_in(const ResolvedRun& run, const std::string& checkpoints) {
  Result result;
  const Corpus corpus = load_corpus(run.config);
  TrainingHooks hooks;
  hooks.on_start = [&result](std::optional<std::uint64_t> step) { result.resumed = step; };
  hooks.on_line = [&result](const MetricsLine& line) {
    result.lines.push_back(to_json_line(line));
    result.lines.back().erase("seconds");
    result.lines.back().erase("ranks");
  };
  hooks.on_checkpoint_error = [](std::uint64_t step, const std::string& error) { FAIL() << step << ": " << error; };
  hooks.checkpoints = CheckpointPlace{checkpoints, "resume", run.run_id, std::string(64, '0')};
  comm::run_ranks(run.config.parallel.world_size(), std::chrono::seconds(60), [&](comm::Communicator& group) {
    TrainingOutcome outcome = train(run.config, corpus, group, hooks);
    if (group.rank() == 0) result.outcome = std::move(outcome);
  });
  return result;
}

/// Lines up to a step.
std::vector<json> lines_to(const std::vector<json>& lines, std::uint64_t step) {
  std::vector<json> first;
  for (const json& line : lines) {
    if (line["step"].get<std::uint64_t>() <= step) first.push_back(line);
  }
  return first;
}

void expect_same_end(const Result& whole, const Result& resumed, const ResolvedRun& run) {
  EXPECT_EQ(loss_statistics_json(whole.outcome.statistics, run.config.network),
            loss_statistics_json(resumed.outcome.statistics, run.config.network));
  EXPECT_EQ(whole.outcome.steps, resumed.outcome.steps);
  EXPECT_EQ(whole.outcome.tokens, resumed.outcome.tokens);
  EXPECT_EQ(whole.outcome.train_final_loss, resumed.outcome.train_final_loss);
  EXPECT_EQ(whole.outcome.validation_final_loss, resumed.outcome.validation_final_loss);
  EXPECT_EQ(whole.outcome.validation_best_loss, resumed.outcome.validation_best_loss);
  EXPECT_EQ(whole.outcome.selection_loss, resumed.outcome.selection_loss);
  EXPECT_EQ(whole.outcome.selection_tokens, resumed.outcome.selection_tokens);
  EXPECT_EQ(whole.outcome.skipped_steps, resumed.outcome.skipped_steps);
  EXPECT_EQ(whole.outcome.loss_scale, resumed.outcome.loss_scale);
  EXPECT_EQ(whole.outcome.stage_failures.size(), resumed.outcome.stage_failures.size());
  ASSERT_EQ(whole.outcome.weights.size(), resumed.outcome.weights.size());
  for (const auto& [name, tensor] : whole.outcome.weights) {
    EXPECT_EQ(tensor.bytes, resumed.outcome.weights.at(name).bytes) << name;
  }
}

/// `every`: the distance of the steps after which the run is interrupted.
void expect_resumes(const json& changes, std::uint64_t steps = 12, std::uint64_t every = 1) {
  const ResolvedRun run = resolved_run(changes, steps);
  const TemporaryFolder folder;
  const Result whole = train_in(run, folder.path() + "/whole");
  ASSERT_EQ(whole.outcome.checkpoints.completed, steps);
  EXPECT_FALSE(whole.resumed);
  for (std::uint64_t k = steps; k >= 1; k -= std::min(k, every)) {
    SCOPED_TRACE("interrupted after step " + std::to_string(k));
    const std::string part = folder.path() + "/from-" + std::to_string(k);
    std::filesystem::create_directories(part);
    const std::string name = "/step-" + std::to_string(k);
    std::filesystem::copy(folder.path() + "/whole" + name, part + name);
    const Result resumed = train_in(run, part);
    EXPECT_EQ(resumed.resumed, k);
    EXPECT_EQ(resumed.outcome.resumed_at, std::vector<std::uint64_t>{k});
    std::vector<json> lines = lines_to(whole.lines, k);
    lines.insert(lines.end(), resumed.lines.begin(), resumed.lines.end());
    EXPECT_EQ(lines, whole.lines);
    expect_same_end(whole, resumed, run);
    if (::testing::Test::HasFailure()) return;
    std::filesystem::remove_all(part);
  }
}

json network(const json& changes) { return {{"network", changes}}; }

TEST(CheckpointResume, FortyStepsAreAnyStepsAndTheRest) { expect_resumes(network({{"fill", "stale"}}), 40); }

TEST(CheckpointResume, ShardsGoOnWithTheSameBits) {
  json changes = {{"data", {{"text", nullptr}, {"shards", text_file()}, {"format", "text"}}},
                  {"parallel", {{"tensor", 1}, {"data", 2}}}};
  expect_resumes(changes, 10, 3);
  changes["parallel"] = {{"tensor", 2}, {"pipeline", 2}};
  changes["training"] = {{"accumulation", 2}, {"schedule", "warmup_stable_decay"}, {"drop_last", true}};
  expect_resumes(changes, 10, 3);
}

// No state of dropout is in a checkpoint: masks follow from the step.
TEST(CheckpointResume, DropoutAndCutTokensGoOnWithTheSameBits) {
  json changes = {{"training", {{"dropout", 0.2}, {"accumulation", 2}}},
                  {"parallel", {{"tensor", 2}, {"tensor_sequence", true}}}};
  expect_resumes(changes, 6, 2);
  changes["parallel"] = {{"tensor", 1}, {"data", 2}, {"zero", 1}};
  expect_resumes(changes, 6, 2);
}

// The scale is far too large at first, falls, and grows again: every step has another one.
TEST(CheckpointResume, ALossScaleGoesOnAtEveryStep) {
  for (const char* parallel :
       {R"({"tensor": 2})", R"({"tensor": 1, "data": 2, "zero": 2})", R"({"tensor": 1, "pipeline": 2})"}) {
    SCOPED_TRACE(parallel);
    json changes = network({{"fill", "stale"}});
    changes["parallel"] = json::parse(parallel);
    changes["training"] = {{"precision", {{"compute", "float16"}, {"message", "float16"}}},
                           {"loss_scale", {{"initial", 0x1p25}, {"interval", 2}, {"hysteresis", 2}}}};
    const ResolvedRun run = resolved_run(changes, 14);
    const TemporaryFolder folder;
    const Result whole = train_in(run, folder.path() + "/whole");
    EXPECT_GE(whole.outcome.skipped_steps, 3U);
    EXPECT_LE(whole.outcome.skipped_steps, 11U);
    expect_resumes(changes, 14);
  }
}

class ResumeOfNetwork : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(ResumeOfNetwork, GoesOnWithTheSameBits) { expect_resumes(network(json::parse(GetParam().second)), 12, 3); }

INSTANTIATE_TEST_SUITE_P(Checkpoint, ResumeOfNetwork,
                         ::testing::Values(std::pair("zero", R"({"fill": "zero"})"),
                                           std::pair("count_rescale", R"({"fill": "count_rescale"})"),
                                           std::pair("inverse_probability", R"({"fill": "inverse_probability"})"),
                                           std::pair("stale", R"({"fill": "stale"})"),
                                           std::pair("own", R"({"gather": {"fill": "own"}})"),
                                           std::pair("parity", R"({"recovery": {"parity": {"data": 4, "parity": 1}}})"),
                                           std::pair("hadamard", R"({"recovery": {"hadamard": {"block": 64}}})"),
                                           std::pair("error_feedback", R"({"recovery": {"error_feedback": true}})"),
                                           std::pair("ring", R"({"path": "ring"})"),
                                           std::pair("contribution", R"({"path": "contribution"})"),
                                           std::pair("message_bursts", R"({"burst_scope": "message"})")),
                         [](const auto& instance) { return std::string(instance.param.first); });

class ResumeOfRun : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(ResumeOfRun, GoesOnWithTheSameBits) { expect_resumes(json::parse(GetParam().second), 10, 3); }

INSTANTIATE_TEST_SUITE_P(
    Checkpoint, ResumeOfRun,
    ::testing::Values(
        std::pair("one_rank", R"({"parallel": {"tensor": 1}})"),
        std::pair("data", R"({"parallel": {"tensor": 1, "data": 4}})"),
        std::pair("zero_1", R"({"parallel": {"data": 2, "zero": 1}})"),
        std::pair("zero_2", R"({"parallel": {"data": 2, "zero": 2, "bucket_bytes": 4096}})"),
        std::pair("zero_3", R"({"parallel": {"data": 2, "zero": 3}})"),
        std::pair("zero_1_stale", R"({"parallel": {"data": 2, "zero": 1}, "network": {"fill": "stale"}})"),
        std::pair("replicas_without_loss",
                  R"({"parallel": {"data": 4}, "network": {"loss": null,
                      "classes": {"tp_forward": {"loss": {"model": "bernoulli", "loss_rate": "5%"}}}}})"),
        std::pair("pipeline", R"({"parallel": {"pipeline": 2}, "training": {"accumulation": 2}})"),
        std::pair("pipeline_skip", R"({"parallel": {"tensor": 1, "pipeline": 2}, "training": {"accumulation": 2},
                   "network": {"loss": null, "classes": {"pp_activation":
                     {"fill": "skip", "loss": {"model": "bernoulli", "loss_rate": "5%"}}}}})"),
        std::pair("chunks", R"({"parallel": {"tensor": 1, "pipeline": 2, "schedule": "interleaved", "chunks": 2},
                   "model": {"layers": 4}, "training": {"accumulation": 2}, "network": {"fill": "stale"}})"),
        std::pair("all_dimensions", R"({"parallel": {"data": 2, "pipeline": 2, "zero": 1},
                   "training": {"accumulation": 2}, "network": {"fill": "stale"}})"),
        std::pair("stages_that_fail", R"({"parallel": {"tensor": 1, "pipeline": 4}, "model": {"layers": 4},
                   "training": {"accumulation": 2}, "failures": {"stages": {"rate": 0.3, "replacement": "weighted"}}})"),
        std::pair("replicas_that_leave", R"({"parallel": {"data": 3, "tensor": 1}, "network": {"fill": "stale"},
                   "failures": {"replicas": [{"data_rank": 1, "from": 3, "until": 6}, {"data_rank": 2, "from": 5}]}})"),
        std::pair("sgd", R"({"training": {"optimizer": "sgd"}})"),
        std::pair("own_norms", R"({"training": {"gradient_norm": "own"}})"),
        std::pair("bfloat16", R"({"training": {"precision": "bfloat16"}})"),
        std::pair(
            "virtual_time",
            R"({"time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1}, "compute_milliseconds": 4}})"),
        std::pair(
            "retransmission",
            R"({"time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1}, "compute_milliseconds": 4},
                   "network": {"recovery": {"retransmit": {"protocol": "selective_repeat", "rounds": 2}}}})"),
        std::pair("selection", R"({"validation": {"selection_tokens": 128}})"),
        std::pair("lossy_evaluation", R"({"validation": {"network": "lossy"}})"),
        std::pair("in_the_background", R"({"checkpoint": {"async": true}})")),
    [](const auto& instance) { return std::string(instance.param.first); });

}  // namespace
}  // namespace droptest::experiments
