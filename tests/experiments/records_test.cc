// SPDX-License-Identifier: Apache-2.0
// Every record that the code writes is valid under its schema, also when numbers are not finite.
#include "experiments/records/loss_statistics_record.h"
#include "experiments/records/run_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "experiments/files/atomic_file.h"
#include "experiments/records/diagnostics_record.h"
#include "experiments/records/metrics.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/run_id.h"
#include "sim/error.h"
#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::records_test {
namespace {

using comm::canonical_json;
using nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> violations(SchemaKind kind, const json& record) {
  std::vector<std::string> lines;
  // Through the text, as a reader gets it.
  for (const comm::Violation& violation : schema_of(kind).check(comm::parse_json(record.dump(), "record"))) {
    lines.push_back(violation.pointer + ": " + violation.message);
  }
  return lines;
}

ResolvedRun lossy_run() {
  return resolve(
      comm::parse_json(R"({"name": "t", "data": {"text": "a"}, "parallel": {"tensor": 2}, "seed": 5, "network": {
      "reduce": {"loss": {"model": "bernoulli", "loss_rate": 0.25}, "fill": "count_rescale"},
      "gather": {"loss": {"model": "gilbert_elliott", "loss_rate": 0.2, "mean_burst_packets": 8}, "fill": "own"},
      "classes": {"tp_backward": {"gather": {"loss": {"model": "none"}}}}}})",
                       "s"),
      "s");
}

comm::LossCounts counts(std::uint64_t packets, std::uint64_t lost, double expected, double variance) {
  comm::LossCounts result;
  result.messages = 10;
  result.packets = packets;
  result.bytes = packets * 1408;
  result.lost_packets = lost;
  result.lost_bytes = lost * 1408;
  result.expected_lost = expected;
  result.expected_lost_variance = variance;
  return result;
}

comm::ClassStatistics forward_statistics() {
  comm::ClassStatistics statistics;
  statistics.traffic_class = sim::TrafficClass::kTpForward;
  statistics.halves[0] = counts(1000, 260, 250, 187.5);
  statistics.halves[0].bursts = {{1, 150}, {2, 40}, {10, 3}};
  statistics.halves[1] = counts(1000, 180, 200, 2400);
  statistics.halves[1].bursts = {{8, 20}, {20, 1}};
  statistics.collectives = 40;
  statistics.untouched = 10;
  statistics.sampled_calls = 4;
  statistics.error_energy = 1;
  statistics.exact_energy = 4;
  statistics.result_energy = 4;
  statistics.inner_product = 3;
  statistics.digest = 0xabcULL;
  statistics.links.push_back({{sim::TrafficClass::kTpForward, sim::Half::kReduce, 0, 1}, statistics.halves[0], 1});
  statistics.links.push_back(
      {{sim::TrafficClass::kTpForward, sim::Half::kGather, 1, sim::Link::kEveryDestination}, statistics.halves[1], 2});
  return statistics;
}

TEST(Provenance, FindsTheDriverInWhatItsKernelModuleSays) {
  EXPECT_EQ(
      nvidia_driver_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC\n"
                            "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n"),
      "535.129.03");
  EXPECT_EQ(
      nvidia_driver_version("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"),
      "580.95.05");
  EXPECT_EQ(nvidia_driver_version(""), "");
}

TEST(LossStatisticsRecord, HoldsCountsRatesAndTheoryOfBothHalves) {
  const ResolvedRun run = lossy_run();
  const json record = loss_statistics_json({forward_statistics()}, run.config.network);
  EXPECT_THAT(violations(SchemaKind::kLossStatistics, record), testing::IsEmpty());
  const json& forward = record["classes"]["tp_forward"];
  EXPECT_EQ(forward["packets"], 2000);
  EXPECT_EQ(forward["lost"], 440);
  EXPECT_EQ(forward["realised_rate"], 0.22);
  EXPECT_EQ(forward["configured_rate"], 0.225);
  EXPECT_NEAR(forward["z"].get<double>(), -10 / std::sqrt(2587.5), 1e-12);
  EXPECT_EQ(forward["untouched_share"], 0.25);
  EXPECT_EQ(forward["nmse"], 0.25);
  EXPECT_EQ(forward["cosine"], 0.75);
  EXPECT_EQ(forward["digest"], "0000000000000abc");
  EXPECT_EQ(forward["path"], "direct");
  const json& reduce = forward["halves"]["reduce"];
  EXPECT_EQ(reduce["fill"], "count_rescale");
  EXPECT_EQ(forward["halves"]["gather"]["fill"], "own");
  // Bernoulli at p = 1/4: mean burst 1 / (1 - p); P(length = n) = p^(n-1) (1 - p), of 193 bursts.
  EXPECT_NEAR(reduce["configured_mean_burst_packets"].get<double>(), 4.0 / 3, 1e-12);
  EXPECT_EQ(reduce["burst_histogram"].size(), 3U);
  EXPECT_EQ(reduce["burst_histogram"][2]["length"], 10);
  EXPECT_EQ(reduce["burst_histogram"][2]["count"], 3);
  EXPECT_NEAR(reduce["burst_histogram"][0]["expected"].get<double>(), 193 * 0.75, 1e-9);
  EXPECT_NEAR(reduce["burst_histogram"][1]["expected"].get<double>(), 193 * 0.75 * 0.25, 1e-9);
  EXPECT_NEAR(reduce["burst_histogram"][2]["expected"].get<double>(), 193 * 0.75 * std::pow(0.25, 9), 1e-9);
  // Over both halves: 450 packets lost in theory, in 250 / (4/3) + 200 / 8 bursts.
  EXPECT_NEAR(forward["configured_mean_burst_packets"].get<double>(), 450 / (187.5 + 25), 1e-12);
  ASSERT_EQ(record["links"].size(), 2U);
  EXPECT_EQ(record["links"][0]["destination"], 1);
  EXPECT_EQ(record["links"][1]["destination"], nullptr);
  EXPECT_EQ(record["links"][1]["half"], "gather");
}

TEST(LossStatisticsRecord, SaysWhichMessagesTookAnotherPath) {
  ResolvedRun run = lossy_run();
  comm::ClassNetwork& network = *run.config.network.of(sim::TrafficClass::kTpForward);
  EXPECT_FALSE(loss_statistics_json({forward_statistics()}, run.config.network)["classes"]["tp_forward"].contains(
      "sized_paths"));
  network.path = "ring";
  network.sized_paths = {{100, "direct"}, {2000, "tree"}};
  const json record = loss_statistics_json({forward_statistics()}, run.config.network);
  EXPECT_THAT(violations(SchemaKind::kLossStatistics, record), testing::IsEmpty());
  EXPECT_EQ(record["classes"]["tp_forward"]["path"], "ring");
  EXPECT_EQ(record["classes"]["tp_forward"]["sized_paths"],
            json::parse(R"([{"up_to_elements": 100, "path": "direct"}, {"up_to_elements": 2000, "path": "tree"}])"));
}

TEST(LossStatisticsRecord, AHalfWithoutLossAndNumbersThatAreNotFiniteAreWritten) {
  const ResolvedRun run = lossy_run();
  comm::ClassStatistics statistics = forward_statistics();
  statistics.traffic_class = sim::TrafficClass::kTpBackward;
  statistics.halves[1] = counts(1000, 0, 0, 0);
  statistics.halves[1].lost_packets = 1;  // cannot be: z is infinite
  statistics.divergence_max = kInfinity;
  statistics.error_energy = kNan;
  statistics.links.clear();
  const json record = loss_statistics_json({statistics}, run.config.network);
  EXPECT_THAT(violations(SchemaKind::kLossStatistics, record), testing::IsEmpty());
  const json& backward = record["classes"]["tp_backward"];
  EXPECT_EQ(backward["halves"]["gather"]["loss"], "none");
  EXPECT_EQ(backward["halves"]["gather"]["z"], nullptr);
  EXPECT_EQ(backward["divergence_max"], nullptr);
  EXPECT_EQ(backward["nmse"], nullptr);
  EXPECT_FALSE(record.contains("links"));
  EXPECT_THAT(violations(SchemaKind::kLossStatistics, loss_statistics_json({}, run.config.network)),
              testing::IsEmpty());
}

TEST(LossStatisticsRecord, MeasuresOfAClassThatWasNotSampledAreNull) {
  ResolvedRun run = lossy_run();
  comm::ClassNetwork& network = *run.config.network.of(sim::TrafficClass::kTpForward);
  network.compression = {comm::CompressionKind::kInt8, 16};
  network.recovery.error_feedback = comm::ClassRecovery::ErrorFeedback::kEf21;
  comm::ClassStatistics statistics;
  statistics.traffic_class = sim::TrafficClass::kTpForward;
  statistics.halves[0] = counts(1000, 50, 50, 47.5);
  statistics.collectives = 40;
  const json record = loss_statistics_json({statistics}, run.config.network);
  EXPECT_THAT(violations(SchemaKind::kLossStatistics, record), testing::IsEmpty());
  const json& forward = record["classes"]["tp_forward"];
  EXPECT_EQ(forward["realised_rate"], 0.05);
  EXPECT_EQ(forward["sampled_calls"], 0);
  for (const char* name : {"nmse", "cosine", "divergence_max", "divergence_rms"}) {
    EXPECT_EQ(forward[name], nullptr) << name;
  }
  EXPECT_EQ(forward["compression"]["nmse"], nullptr);
  EXPECT_EQ(forward["compression"]["ends_nmse"], nullptr);
  for (const char* name : {"configured_rate", "realised_rate", "z"}) {
    EXPECT_EQ(forward["halves"]["gather"][name], nullptr) << name << " of a half without packets";
  }
}

TEST(LossStatisticsRecord, ASampledClassWithoutErrorsHasNmseZeroAndCosineOne) {
  comm::ClassStatistics statistics = forward_statistics();
  statistics.error_energy = 0;
  statistics.inner_product = 4;
  statistics.divergence_max = 0;
  const json record = loss_statistics_json({statistics}, lossy_run().config.network);
  const json& forward = record["classes"]["tp_forward"];
  EXPECT_EQ(forward["nmse"], 0);
  EXPECT_EQ(forward["cosine"], 1);
  EXPECT_EQ(forward["divergence_max"], 0);
}

TEST(DiagnosticsRecord, LayersHaveTheEnergiesOfTheirNmseAndNullIfTheyWereNotSampled) {
  comm::ClassStatistics statistics = forward_statistics();
  comm::LayerStatistics layer;
  layer.layer = 1;
  layer.steps = 2;
  statistics.layers.push_back(layer);
  layer.layer = 2;
  layer.samples.calls = 1;
  layer.samples.elems = 8;
  layer.samples.error_energy = 20;
  layer.samples.exact_energy = 120;
  layer.samples.result_energy = 100;
  layer.samples.inner_product = 100;
  layer.samples.error_sum = -12;
  statistics.layers.push_back(layer);
  const json record = diagnostics_json({statistics}, lossy_run().config.network);
  EXPECT_THAT(violations(SchemaKind::kDiagnostics, record), testing::IsEmpty());
  const json& layers = record["classes"]["tp_forward"]["layers"];
  for (const char* name :
       {"error_energy", "exact_energy", "bias", "nmse", "cosine", "divergence_max", "divergence_rms"}) {
    EXPECT_EQ(layers[0][name], nullptr) << name;
  }
  EXPECT_EQ(layers[1]["error_energy"], 20);
  EXPECT_EQ(layers[1]["exact_energy"], 120);
  EXPECT_EQ(layers[1]["nmse"], 20.0 / 120);
  EXPECT_EQ(layers[1]["divergence_max"], nullptr) << "no results that are equal on all ranks without loss";
}

RunSummary finished() {
  RunSummary summary;
  summary.point = {{"/network/loss", {{"model", "none"}}}};
  summary.steps = 300;
  summary.tokens = 307200;
  summary.train_final_loss = 2.5;
  summary.validation_final_loss = 2.625;
  summary.validation_best_loss = 2.5625;
  summary.validation_tokens = 65536;
  summary.tokens_per_second = 8000;
  summary.seconds = 38.4;
  summary.provenance = build_provenance();
  summary.provenance.started = utc_text(std::chrono::system_clock::time_point(std::chrono::seconds(1700000000)));
  summary.provenance.finished = utc_text(std::chrono::system_clock::now());
  return summary;
}

TEST(SummaryRecord, HoldsTheOutcome) {
  const ResolvedRun run = lossy_run();
  const json record = summary_json(run, finished());
  EXPECT_THAT(violations(SchemaKind::kSummary, record), testing::IsEmpty());
  EXPECT_EQ(record["run_id"], run.run_id);
  EXPECT_EQ(record["seed"], 5);
  EXPECT_EQ(canonical_json(record["seeds"]), R"({"data":5,"network":5,"weights":5})");
  EXPECT_EQ(record["status"], "completed");
  EXPECT_EQ(record["error"], nullptr);
  EXPECT_EQ(record["validation"]["final_loss"], 2.625);
  EXPECT_EQ(record["train"]["final_loss"], 2.5);
  EXPECT_EQ(record["loss"]["tp_forward"]["gather"]["model"], "gilbert_elliott");
  EXPECT_NEAR(record["loss"]["tp_forward"]["gather"]["loss_rate"].get<double>(), 0.2, 1e-12);
  EXPECT_NEAR(record["loss"]["tp_forward"]["gather"]["mean_burst_packets"].get<double>(), 8, 1e-12);
  EXPECT_EQ(record["loss"]["tp_backward"]["gather"]["model"], "none");
  EXPECT_EQ(record["provenance"]["started"], "2023-11-14T22:13:20Z");
  for (const char* library : {"oneDNN", "Gloo", "Eigen", "Boost", "nlohmann_json"}) {
    EXPECT_THAT(record["provenance"]["libraries"][library].get<std::string>(),
                testing::AnyOf(testing::HasSubstr("."), "not built"))
        << library;
  }
  EXPECT_THAT(record["provenance"]["commit"].get<std::string>(),
              testing::ContainsRegex("^([0-9a-f]{40}(-dirty)?|unknown)$"));
}

TEST(SummaryRecord, DivergedAndFailedRunsAreResultsToo) {
  RunSummary diverged = finished();
  diverged.status = RunStatus::kDiverged;
  diverged.diverged_step = 17;
  diverged.validation_final_loss = kNan;
  diverged.train_final_loss = kInfinity;
  diverged.validation_best_loss.reset();
  const json record = summary_json(lossy_run(), diverged);
  EXPECT_THAT(violations(SchemaKind::kSummary, record), testing::IsEmpty());
  EXPECT_EQ(record["diverged_step"], 17);
  EXPECT_EQ(record["validation"]["final_loss"], nullptr);
  RunSummary failed = finished();
  failed.status = RunStatus::kFailed;
  failed.error = "rank 1 \xff died";  // whatever bytes a peer sent
  const json failure = summary_json(lossy_run(), failed);
  const TemporaryFolder folder;
  write_summary_record({folder.path()}, failure);
  EXPECT_EQ((*read_summary({folder.path()}))["error"], "rank 1 \ufffd died");
  EXPECT_FALSE(has_result({folder.path()}));
  write_summary_record({folder.path()}, record);
  EXPECT_TRUE(has_result({folder.path()}));
}

TEST(SummaryRecord, AbsentMeansNoResultAndRubbishIsSaid) {
  const TemporaryFolder folder;
  const RunDirectory directory{folder.path()};
  std::string said;
  const SayUnread say = [&said](const std::string& text) { said += text + "\n"; };
  EXPECT_FALSE(has_result(directory, say));
  EXPECT_EQ(said, "");
  EXPECT_FALSE(keeps_records(directory));
  const json record = summary_json(lossy_run(), finished());
  json newer = record;
  newer["schema_version"] = 2;
  newer.erase("run_id");
  for (const auto& [content, why] : {std::pair<std::string, std::string>{R"({"status": "completed"})", ": got nothing"},
                                     {record.dump().substr(0, 500), "not JSON"},
                                     {"", "not JSON"},
                                     {newer.dump(), "/schema_version: got 2, want 1"}}) {
    said.clear();
    write_file_atomically(directory.summary(), content);
    EXPECT_FALSE(has_result(directory, say));
    EXPECT_THAT(said, testing::AllOf(testing::StartsWith(directory.summary() + ": "), testing::HasSubstr(why),
                                     testing::EndsWith("; this droptest takes the run as not finished\n")));
    EXPECT_TRUE(keeps_records(directory)) << "it may be the result of another version";
  }
}

TEST(SummaryRecord, MembersOfALaterProgramAreReadButNotWritten) {
  const TemporaryFolder folder;
  const RunDirectory directory{folder.path()};
  json record = summary_json(lossy_run(), finished());
  record["more"] = 1;
  record["train"]["more"] = {{"a", 1}};
  for (auto& [name, of_class] : record["loss"].items()) of_class["more"] = json::array();
  write_file_atomically(directory.summary(), record.dump());
  EXPECT_EQ(read_summary(directory, [](const std::string& text) { ADD_FAILURE() << text; }), record);
  EXPECT_THROW(write_summary_record(directory, record), CheckError);
  // What it knows has the types that it knows.
  record["steps"] = "many";
  write_file_atomically(directory.summary(), record.dump());
  std::string said;
  EXPECT_FALSE(read_summary(directory, [&said](const std::string& text) { said = text; }));
  EXPECT_THAT(said, testing::HasSubstr("/summary.json: /steps: got \"many\""));
}

TEST(RunRecords, AFinishedRunSaysWhatItLacks) {
  const TemporaryFolder folder;
  const RunDirectory directory{folder.path()};
  const auto run = [](const std::string& record) {
    return resolve(
        comm::parse_json(R"({"name": "t", "data": {"text": "a"}, "training": {"steps": 24}, "record": )" + record + "}",
                         "s"),
        "s");
  };
  const auto lacks = [&](const std::string& record) { return missing_records(directory, run(record)); };
  write_spec_record(directory, run(R"({"every_steps": 3, "sample_every_steps": 12, "weights": "none"})"));
  const std::string none = R"("weights": "none", )";
  // Every run must have these records.
  EXPECT_THAT(lacks("{" + none + R"("every_steps": 3})"),
              testing::ElementsAre("metrics.jsonl", "loss_statistics.json"));
  write_file_atomically(directory.metrics(), "");
  write_file_atomically(directory.loss_statistics(), "{}");
  EXPECT_THAT(lacks("{" + none + R"("every_steps": 3, "sample_every_steps": 12})"), testing::IsEmpty());
  EXPECT_THAT(lacks("{" + none + R"("every_steps": 6, "sample_every_steps": 0})"), testing::IsEmpty());
  EXPECT_THAT(lacks("{" + none + R"("every_steps": 24, "sample_every_steps": 25})"), testing::IsEmpty());
  EXPECT_THAT(lacks("{" + none + R"("every_steps": 2, "sample_every_steps": 8})"),
              testing::ElementsAre("lines of metrics.jsonl every 2 steps (/record/every_steps)",
                                   "samples of error and divergence every 8 steps (/record/sample_every_steps)"));
  EXPECT_THAT(
      lacks(R"({"every_steps": 3, "links": "include"})"),
      testing::ElementsAre("the final weights (/record/weights)", "the statistics of each link (/record/links)"));
  write_file_atomically(directory.weights(), "weights");
  EXPECT_THAT(lacks(R"({"every_steps": 3})"), testing::IsEmpty());
  write_spec_record(directory, run(R"({"every_steps": 3, "sample_every_steps": 0, "links": "include"})"));
  EXPECT_THAT(lacks(R"({"every_steps": 3, "sample_every_steps": 24, "links": "include"})"),
              testing::ElementsAre("samples of error and divergence every 24 steps (/record/sample_every_steps)"));
}

/// "MARK POINTER: MESSAGE" of each warning of the run.
std::vector<std::string> warnings_of(const ResolvedRun& run, const RunSummary& outcome) {
  const json summary = summary_json(run, outcome);
  EXPECT_THAT(violations(SchemaKind::kSummary, summary), testing::IsEmpty());
  std::vector<std::string> texts;
  for (const json& one : summary["warnings"]) {
    texts.push_back(mark_text(one.value("mark", "")) + " " + one["pointer"].get<std::string>() + ": " +
                    one["message"].get<std::string>());
  }
  return texts;
}

TEST(SummaryRecord, MarksRunsThatLackSamplesOrReplicasOrWereResumed) {
  const ResolvedRun run = lossy_run();
  RunSummary outcome = finished();
  EXPECT_THAT(warnings_of(run, outcome), testing::IsEmpty());
  outcome.data.emplace();
  outcome.data->shards = 2;
  outcome.data->samples = 10;
  outcome.data->lost_samples = 3;
  outcome.data->lost_shards = {{"b.bin", 1, 3, 7, "no such file"}};
  outcome.steps_with_fewer_replicas = 20;
  outcome.resumed_at = {6, 12};
  EXPECT_THAT(warnings_of(run, outcome),
              testing::ElementsAre(
                  "lost samples /data/shards: training left out 3 samples of 1 shard that could not be read",
                  "fewer replicas /failures/replicas: 20 of 300 steps had fewer replicas than the 1 of /parallel/data",
                  "resumed /checkpoint: the run went on from the checkpoint of step 6, 12"));
  outcome.data->lost_samples = 0;
  outcome.steps_with_fewer_replicas = 0;
  EXPECT_EQ(warnings_of(run, outcome).size(), 1U);
}

TEST(SummaryRecord, HasThePointersThatATwinLeavesOut) {
  const ResolvedRun run = lossy_run();
  const json summary = summary_json(run, finished());
  EXPECT_EQ(summary["twin_omits"], json(twin_omits(run.spec)));
  EXPECT_THAT(summary["twin_omits"].get<std::vector<std::string>>(), testing::Contains("/network"));
}

TEST(SweepRecord, HasTheNamesOfItsPointersInTheOrderOfTheSpec) {
  const json record = sweep_json(plan_sweep(parse_spec(
      R"({"name": "t", "data": {"text": "a"}, "sweep": {"cross": {"/training/steps": [1], "/model/layers": [1]}}})",
      "s")));
  EXPECT_THAT(violations(SchemaKind::kSweep, record), testing::IsEmpty());
  EXPECT_EQ(canonical_json(record["names"]), R"([{"name":"steps","pointer":"/training/steps"},)"
                                             R"({"name":"layers","pointer":"/model/layers"}])");
  EXPECT_FALSE(sweep_json(plan_sweep(parse_spec(R"({"name": "t", "data": {"text": "a"}})", "s"))).contains("names"));
}

TEST(SweepRecord, ListsEveryRun) {
  const SweepPlan plan = plan_sweep(parse_spec(
      R"({"name": "t", "description": "why", "data": {"text": "a"}, "repeat": {"seeds": 2},
          "sweep": {"cross": {"/training/steps": [1, 2]}}})",
      "s"));
  const TemporaryFolder folder;
  write_sweep_record(folder.path(), plan);
  const json record = comm::load_json(sweep_file(folder.path(), "t"));
  EXPECT_THAT(violations(SchemaKind::kSweep, record), testing::IsEmpty());
  EXPECT_EQ(record["runs"].size(), 4U);
  EXPECT_EQ(record["runs"][3]["seed"], 2);
  EXPECT_EQ(record["runs"][3]["point"]["/training/steps"], 2);
  EXPECT_EQ(record["runs"][3]["run_id"], plan.runs[3].run.run_id);
  EXPECT_EQ(record["spec"], plan.spec);
}

TEST(SweepRecord, WarningsAreInTheRecordsOfTheirRuns) {
  const SweepPlan plan = plan_sweep(parse_spec(
      R"({"name": "t", "data": {"text": "a"}, "network": {"loss": {"model": "bernoulli", "loss_rate": 0.1}},
          "sweep": {"cross": {"/parallel/tensor": [1, 2]}}})",
      "s"));
  const json record = sweep_json(plan);
  EXPECT_THAT(violations(SchemaKind::kSweep, record), testing::IsEmpty());
  EXPECT_EQ(record["runs"][0]["warnings"][0]["pointer"], "/network");
  EXPECT_FALSE(record["runs"][1].contains("warnings"));
  const json summary = summary_json(plan.runs[0].run, finished());
  EXPECT_THAT(violations(SchemaKind::kSummary, summary), testing::IsEmpty());
  EXPECT_EQ(summary["warnings"], record["runs"][0]["warnings"]);
  EXPECT_EQ(warnings_json(warnings_from_json(summary["warnings"])), summary["warnings"]);
  EXPECT_EQ(summary_json(plan.runs[1].run, finished())["warnings"], json::array());
}

TEST(SweepRecord, HasLabelsAndWhatIsTheBestOver) {
  const SweepPlan plan = plan_sweep(parse_spec(
      R"({"name": "t", "data": {"text": "a"}, "validation": {"tokens": 99}, "sweep": {"best_over": ["/training/steps"],
          "zip": {"/training/steps": [1, {"label": "long", "value": 9}]}}})",
      "s"));
  const json record = sweep_json(plan);
  EXPECT_THAT(violations(SchemaKind::kSweep, record), testing::IsEmpty());
  EXPECT_EQ(record["best_over"], json({"/training/steps"}));
  EXPECT_FALSE(record["runs"][0].contains("labels"));
  EXPECT_EQ(canonical_json(record["runs"][1]["labels"]), R"([{"label":"long","pointers":["/training/steps"]}])");
  EXPECT_EQ(record["runs"][1]["point"]["/training/steps"], 9);
  RunSummary outcome = finished();
  outcome.selection_loss = 1.25;
  outcome.selection_tokens = 128;
  const json summary = summary_json(plan.runs[1].run, outcome);
  EXPECT_THAT(violations(SchemaKind::kSummary, summary), testing::IsEmpty());
  EXPECT_EQ(summary["labels"], record["runs"][1]["labels"]);
  EXPECT_EQ(summary["validation"]["selection_loss"], 1.25);
  EXPECT_EQ(summary["validation"]["selection_tokens"], 128);
  EXPECT_FALSE(summary_json(lossy_run(), outcome)["validation"].contains("selection_loss"));
}

TEST(SweepRecord, NamesEachSeedWhereTheyDiffer) {
  const SweepPlan plan =
      plan_sweep(parse_spec(R"({"name": "t", "data": {"text": "a"}, "parallel": {"tensor": 2}, "seed": 4,
      "repeat": {"network": 2}, "network": {"loss": {"model": "bernoulli", "loss_rate": 0.1}}})",
                            "s"));
  const json runs = sweep_json(plan)["runs"];
  EXPECT_EQ(runs[0]["seed"], 4);
  EXPECT_FALSE(runs[1].contains("seed"));
  EXPECT_EQ(canonical_json(runs[1]["seeds"]), R"({"data":4,"network":5,"weights":4})");
  const json summary = summary_json(plan.runs[1].run, finished());
  EXPECT_THAT(violations(SchemaKind::kSummary, summary), testing::IsEmpty());
  EXPECT_FALSE(summary.contains("seed"));
  EXPECT_EQ(summary["seeds"], runs[1]["seeds"]);
}

TEST(SpecRecord, IsASpecThatRepeatsTheRun) {
  const TemporaryFolder folder;
  const ResolvedRun run = lossy_run();
  const RunDirectory directory = run_directory(folder.path(), run.config.name, run.run_id);
  write_spec_record(directory, run);
  const SweepPlan again = plan_sweep(read_spec(folder.path() + "/t/" + run.run_id + "/spec.json"));
  ASSERT_EQ(again.runs.size(), 1U);
  EXPECT_EQ(again.runs[0].run.run_id, run.run_id);
}

TEST(Records, ARecordThatBreaksItsSchemaIsABugAndIsNotWritten) {
  const TemporaryFolder folder;
  json record = summary_json(lossy_run(), finished());
  record["status"] = "fine";
  EXPECT_THROW(write_summary_record({folder.path()}, record), CheckError);
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/summary.json"));
}

TEST(MetricsLine, WritesWhatWasMeasured) {
  MetricsLine line;
  line.step = 10;
  line.tokens = 10240;
  line.seconds = 1.25;
  EXPECT_EQ(canonical_json(to_json_line(line)), R"({"seconds":1.25,"step":10,"tokens":10240})");
  line.train_loss = kNan;
  line.learning_rate = 0.001;
  line.gradient_norm = kInfinity;
  line.validation_loss = 2.5;
  line.selection_loss = 2.25;
  line.divergence = Divergence{0.5, 0.25};
  line.divergence_groups = {{"bias", {kNan, 0}}};
  line.classes = {{"tp_forward", {0.5, kNan}}};
  EXPECT_THAT(violations(SchemaKind::kMetrics, to_json_line(line)), testing::IsEmpty());
  EXPECT_EQ(
      canonical_json(to_json_line(line)),
      R"({"classes":{"tp_forward":{"cosine":null,"nmse":0.5}},"divergence":{"groups":{"bias":{"max":null,)"
      R"("rms":0.0}},"max":0.5,"rms":0.25},"gradient_norm":null,"learning_rate":0.001,"seconds":1.25,"selection_loss":2.25,"step":10,)"
      R"("tokens":10240,"train_loss":null,"validation_loss":2.5})");
}

}  // namespace
}  // namespace droptest::experiments::records_test
