// SPDX-License-Identifier: Apache-2.0
// Runs that are interrupted after some step and continue from its checkpoint, against runs that are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/json/json_text.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/checkpoint/rank_snapshot.h"
#include "experiments/records/loss_statistics_record.h"
#include "experiments/records/run_records.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resumed_runs.h"
#include "tests/sanitizers.h"

namespace droptest::experiments::checkpoint_resume_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Result = ResumedRun;

/// Runs are interrupted after each of the first steps, which hold a whole period of everything that happens at some
/// steps only, and after every seventh step from there on. Programs with sanitizers are slow: their runs are shorter,
/// with fewer interruptions.
constexpr std::uint64_t kSteps = kAddressSanitizer ? 8 : 24;
constexpr std::uint64_t kFirstSteps = kAddressSanitizer ? 1 : 8;
constexpr std::uint64_t kStepsBetween = kAddressSanitizer ? 4 : 7;
constexpr std::uint64_t kStepsBetweenEnds = kAddressSanitizer ? 4 : 9;

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

/// The line of the step after a checkpoint, and the state after it, are those of the whole run. So they are after each
/// step from there on: they are a function of the state before.
void expect_same_next_step(const ResolvedRun& run, const std::string& folder, const Result& whole, std::uint64_t k) {
  SCOPED_TRACE("one step after step " + std::to_string(k));
  const std::string part = folder + "/one-step";
  const std::string name = "/step-" + std::to_string(k);
  fs::remove_all(part);
  fs::create_directories(part);
  fs::copy(folder + "/whole" + name, part + name);
  TrainingHooks hooks;
  hooks.stop_requested = [] { return true; };
  const Result resumed = train_in(run, part, hooks);
  EXPECT_EQ(resumed.resumed, k);
  ASSERT_EQ(resumed.lines.size(), 1U);
  const auto same_step = [k](const json& line) { return line["step"] == k + 1; };
  EXPECT_EQ(resumed.lines.front(), *std::ranges::find_if(whole.lines, same_step));
  const CheckpointFolder of_part(part);
  const CheckpointFolder of_whole(folder + "/whole");
  const Manifest manifest = of_part.manifest(k + 1);
  const Manifest manifest_of_whole = of_whole.manifest(k + 1);
  for (const RankFile& file : manifest.ranks) {
    const RankFile& other = manifest_of_whole.ranks.at(static_cast<std::size_t>(file.rank));
    EXPECT_EQ(file.numbers, other.numbers);
    models::StoredTensors state = read_rank_file(of_part.of_step(k + 1), file);
    models::StoredTensors expected = read_rank_file(of_whole.of_step(k + 1), other);
    ASSERT_EQ(state.size(), expected.size());
    // The progress has wall time and the interruption.
    EXPECT_EQ(state.erase(kProgressKey) + expected.erase(kProgressKey), 2U);
    for (const auto& [key, tensor] : expected) EXPECT_EQ(state.at(key).bytes, tensor.bytes) << file.file << " " << key;
  }
}

/// Interrupts a run after some of its steps. The run resumes for one step each time; and to its end from those that are
/// `every` steps apart, with all records and the final weights.
void expect_resumes(const json& changes, std::uint64_t steps = kSteps, std::uint64_t every = kStepsBetweenEnds,
                    std::uint64_t first_steps = kFirstSteps) {
  const ResolvedRun run = resolved_run(changes, steps);
  const TemporaryFolder folder;
  const Result whole = train_in(run, folder.path() + "/whole");
  for (std::uint64_t k = 1; k < steps && every > 1; k += k < first_steps ? 1 : kStepsBetween) {
    expect_same_next_step(run, folder.path(), whole, k);
    if (::testing::Test::HasFailure()) return;
  }
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

TEST(CheckpointResume, ManyStepsAreAnyStepsAndTheRest) { expect_resumes(network({{"fill", "stale"}}), kSteps, 1); }

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
    constexpr std::uint64_t kStepsOfScales = 14;
    const ResolvedRun run = resolved_run(changes, kStepsOfScales);
    const TemporaryFolder folder;
    const Result whole = train_in(run, folder.path() + "/whole");
    EXPECT_GE(whole.outcome.skipped_steps, 3U);
    EXPECT_LE(whole.outcome.skipped_steps, 11U);
    expect_resumes(changes, std::max(kSteps, kStepsOfScales), kStepsBetweenEnds,
                   kAddressSanitizer ? kFirstSteps : kStepsOfScales);
  }
}

/// A classifier of three labels that are the lengths of their texts.
json classification(const json& training) {
  static const TemporaryFolder folder;
  static const std::string path = [] {
    std::string name = folder.path() + "/examples.tsv";
    std::ofstream file(name);
    file << "label\ttext\n";
    for (int i = 0; i < 60; ++i)
      file << i % 3 << "\t" << std::string(static_cast<std::size_t>(3 + i % 3), "abcdefg"[i % 7]) << "\n";
    return name;
  }();
  json changes = {{"task", "classification"},
                  {"data", {{"text", nullptr}, {"examples", path}}},
                  {"validation", {{"tokens", nullptr}}},
                  {"parallel", {{"data", 2}}},
                  {"training", training}};
  return changes;
}

TEST(CheckpointResume, AdaptersGoOnWithTheSameBits) {
  expect_resumes(classification({{"lora", {{"rank", 2}, {"targets", {"attn.c_attn", "mlp.c_proj"}}}}}), 8, 3);
}

TEST(CheckpointResume, FrozenLayersGoOnWithTheSameBits) {
  json changes =
      classification({{"tensors", {{{"match", "w*e.*"}, {"frozen", true}}, {{"match", "h.0.*"}, {"frozen", true}}}},
                      {"class_weights", {0.5, 1, 2}}});
  expect_resumes(changes, 8, 3);
  changes["parallel"]["zero"] = 1;
  expect_resumes(changes, 8, 3);
}

class ResumeOfNetwork : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(ResumeOfNetwork, GoesOnWithTheSameBits) { expect_resumes(network(json::parse(GetParam().second))); }

INSTANTIATE_TEST_SUITE_P(Checkpoint, ResumeOfNetwork,
                         ::testing::Values(std::pair("zero", R"({"fill": "zero"})"),
                                           std::pair("count_rescale", R"({"fill": "count_rescale"})"),
                                           std::pair("inverse_probability", R"({"fill": "inverse_probability"})"),
                                           std::pair("stale", R"({"fill": "stale"})"),
                                           std::pair("own", R"({"gather": {"fill": "own"}})"),
                                           std::pair("parity", R"({"recovery": {"parity": {"data": 4, "parity": 1}}})"),
                                           std::pair("own_scaled", R"({"gather": {"fill": "own_scaled"}})"),
                                           std::pair("interleave", R"({"recovery": {"interleave": 4}})"),
                                           std::pair("protect", R"({"recovery": {"protect": {"layers": [1]}}})"),
                                           std::pair("selective_repeat", R"({"recovery": {"retransmit":
                                               {"protocol": "selective_repeat", "rounds": 1}}})"),
                                           std::pair("go_back_n", R"({"recovery": {"retransmit":
                                               {"protocol": "go_back_n", "rounds": 1, "window_packets": 4}}})"),
                                           std::pair("go_back_0", R"({"recovery": {"retransmit":
                                               {"protocol": "go_back_0", "rounds": 1, "window_packets": 4}}})"),
                                           std::pair("halving_doubling", R"({"path": "halving_doubling"})"),
                                           std::pair("tree", R"({"path": "tree"})"),
                                           std::pair("hadamard", R"({"recovery": {"hadamard": {"block": 64}}})"),
                                           std::pair("error_feedback", R"({"recovery": {"error_feedback": true}})"),
                                           std::pair("bfloat16_codes", R"({"compression": {"kind": "bfloat16"}})"),
                                           std::pair("int8", R"({"compression": {"kind": "int8", "block": 8}})"),
                                           std::pair("int4_feedback", R"({"compression": {"kind": "int4", "block": 8},
                                               "recovery": {"error_feedback": true}})"),
                                           std::pair("top_k", R"({"compression": {"kind": "top_k", "fraction": "10%"},
                                               "consistency": "shared", "recovery": {"error_feedback": true}})"),
                                           std::pair("power_sgd", R"({"compression": {"kind": "power_sgd", "rank": 2},
                                               "path": "contribution", "recovery": {"error_feedback": true}})"),
                                           std::pair("int8_ef21", R"({"compression": {"kind": "int8", "block": 8},
                                               "recovery": {"error_feedback": "ef21"}})"),
                                           std::pair("top_k_ef21", R"({"compression": {"kind": "top_k"},
                                               "recovery": {"error_feedback": "ef21"}})"),
                                           std::pair("top_k_ef21_acknowledged",
                                                     R"({"compression": {"kind": "top_k"},
                                               "recovery": {"error_feedback": "ef21_acknowledged"}})"),
                                           std::pair("ring", R"({"path": "ring"})"),
                                           std::pair("contribution", R"({"path": "contribution"})"),
                                           std::pair("message_bursts", R"({"burst_scope": "message"})")),
                         [](const auto& instance) { return std::string(instance.param.first); });

class ResumeOfRun : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(ResumeOfRun, GoesOnWithTheSameBits) { expect_resumes(json::parse(GetParam().second)); }

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
        std::pair("eight_ranks", R"({"parallel": {"tensor": 2, "data": 4, "zero": 2, "bucket_bytes": 4096},
                   "network": {"fill": "stale"}})"),
        std::pair("eight_stages", R"({"parallel": {"tensor": 1, "pipeline": 8}, "model": {"layers": 8},
                   "training": {"accumulation": 2}})"),
        std::pair("stages_that_fail", R"({"parallel": {"tensor": 1, "pipeline": 4}, "model": {"layers": 4},
                   "training": {"accumulation": 2}, "failures": {"stages": {"rate": 0.3, "replacement": "weighted"}}})"),
        std::pair("replicas_that_leave", R"({"parallel": {"data": 3, "tensor": 1}, "network": {"fill": "stale"},
                   "failures": {"replicas": [{"data_rank": 1, "from": 3, "until": 6}, {"data_rank": 2, "from": 5}]}})"),
        std::pair(
            "timeouts",
            R"({"time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1}, "compute_milliseconds": 4},
                   "network": {"recovery": {"retransmit": {"protocol": "timeout", "timeout_microseconds": 50}}}})"),
        std::pair("ring", R"({"parallel": {"tensor": 1, "sequence": 2, "sequence_kind": "ring"}})"),
        std::pair("ulysses", R"({"parallel": {"tensor": 1, "data": 2, "sequence": 2, "sequence_kind": "ulysses"},
                                 "network": {"classes": {"sequence_forward": {"fill": "absent"}}}})"),
        std::pair("outer", R"({"parallel": {"tensor": 1, "data": 3}, "outer": {"every_steps": 4},
                   "network": {"path": "contribution", "fill": "count_rescale"}})"),
        std::pair("outer_fragments", R"({"parallel": {"data": 2}, "network": {"fill": "stale", "classes": {"outer":
                     {"path": "contribution", "fill": "count_rescale"}}},
                   "outer": {"every_steps": 6, "fragments": 3, "delay_steps": 2, "own_share": 0.25}})"),
        std::pair("outer_averages", R"({"parallel": {"tensor": 1, "data": 2},
                   "outer": {"every_steps": 1, "optimizer": "average"},
                   "network": {"path": "contribution", "gather": {"fill": "own"}, "consistency": "shared"}})"),
        std::pair("outer_quorum", R"({"parallel": {"tensor": 1, "data": 3},
                   "outer": {"every_steps": 3, "delay_steps": 1, "quorum": 2, "grace_seconds": 0.0001},
                   "network": {"path": "contribution", "fill": "count_rescale"},
                   "time": {"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1},
                            "compute_milliseconds": 4, "stragglers": {"compute_p99_over_p50": 2}}})"),
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
}  // namespace droptest::experiments::checkpoint_resume_test
