// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "experiments/schema/schema_kinds.h"
#include "experiments/training/step_profile.h"
#include "tests/comm/fake_clock.h"
#include "tests/experiments/tiny_run.h"
#include "tests/sanitizers.h"

namespace droptest::experiments::trace_test {
namespace {

using nlohmann::json;
using testing::Pair;
using testing::UnorderedElementsAre;
using namespace std::chrono_literals;

const json kRun = {{"experiment", "e"}, {"run_id", "r"}, {"backend", "local"}, {"layout", "tensor 2"}};

comm::MeteredCall gradient_sum(comm::MeteredCall::Part part) {
  comm::MeteredCall call;
  call.operation = comm::Operation::kAllReduce;
  call.traffic_class = sim::TrafficClass::kDpGradient;
  call.name = "h.0";
  call.layer = 0;
  call.bytes = 64;
  call.part = part;
  call.group = "0 1";
  call.number = 7;
  return call;
}

json events_of(const json& trace, std::size_t rank, const std::string& category) {
  json found = json::array();
  for (const json& event : trace["traceEvents"]) {
    if (event["pid"] == rank && event.value("cat", "") == category) found.push_back(event);
  }
  return found;
}

TEST(StepProfile, PhasesAndClassesAddUpToTheTime) {
  comm::FakeClock clock;
  StepProfile profile([] { return comm::PacketTotals(); }, clock);
  clock.advance(1s);
  {
    const models::PhaseScope products(&profile.times(), models::Phase::kProducts);
    clock.advance(2s);
    profile.begins(gradient_sum(comm::MeteredCall::Part::kWhole));
    clock.advance(4s);
    profile.ends();
  }
  {
    const StepProfile::Scope evaluation(profile, TrainerPhase::kEvaluation);
    const models::PhaseScope attention(&profile.times(), models::Phase::kAttention);
    clock.advance(8s);
    profile.begins(gradient_sum(comm::MeteredCall::Part::kWhole));
    clock.advance(16s);
    profile.ends();
  }
  {
    const StepProfile::Scope device(profile, TrainerPhase::kDevice);
    clock.advance(32s);
    profile.begins(gradient_sum(comm::MeteredCall::Part::kWhole));
    clock.advance(64s);
    profile.ends();
  }
  RankUsage usage;
  profile.put_seconds(usage);
  EXPECT_THAT(usage.phase_seconds,
              UnorderedElementsAre(Pair("products", 2), Pair("evaluation", 24), Pair("device", 32), Pair("other", 1)));
  EXPECT_THAT(usage.communication_seconds, UnorderedElementsAre(Pair("dp_gradient", 68)));
}

TEST(Trace, ACollectiveWaitsForTheLastRankAndThenTransfers) {
  comm::FakeClock clock;
  comm::PacketTotals packets{100, 10};
  const auto count = [&packets] { return packets; };
  StepProfile early(count, clock);
  StepProfile late(count, clock);
  for (StepProfile* profile : {&early, &late}) {
    profile->start_recording(clock.now());
    profile->begin_step();
  }
  early.begins(gradient_sum(comm::MeteredCall::Part::kWhole));
  clock.advance(3ms);
  late.begins(gradient_sum(comm::MeteredCall::Part::kWhole));
  packets = {105, 12};
  clock.advance(1ms);
  early.ends();
  late.ends();
  early.end_step(4);
  late.end_step(4);
  const json trace = trace_document({early.take_recording(), late.take_recording()}, kRun);
  EXPECT_EQ(schema_of(SchemaKind::kTrace).check(trace).size(), 0U);
  const json first = events_of(trace, 0, "communication");
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0]["name"], "all_reduce h.0");
  EXPECT_EQ(first[0]["ts"], 0.0);
  EXPECT_EQ(first[0]["dur"], 4000.0);
  EXPECT_EQ(first[0]["args"], json::parse(R"({"class": "dp_gradient", "operation": "all_reduce", "bytes": 64,
    "group": "0 1", "layer": 0, "packets": 5, "packets_lost": 2, "waiting_us": 3000.0, "transfer_us": 1000.0})"));
  const json second = events_of(trace, 1, "communication");
  EXPECT_EQ(second[0]["args"]["waiting_us"], 0.0);
  EXPECT_EQ(second[0]["args"]["transfer_us"], 1000.0);
  EXPECT_EQ(events_of(trace, 0, "step")[0]["name"], "step 4");
  EXPECT_EQ(events_of(trace, 0, "step")[0]["dur"], 4000.0);
}

TEST(Trace, AStartedCallShowsItsOverlapWithComputation) {
  comm::FakeClock clock;
  StepProfile profile([] { return comm::PacketTotals(); }, clock);
  profile.start_recording(clock.now());
  profile.begins(gradient_sum(comm::MeteredCall::Part::kStart));
  clock.advance(1ms);
  profile.ends();
  {
    const models::PhaseScope gelu(&profile.times(), models::Phase::kGelu);
    clock.advance(5ms);
  }
  comm::MeteredCall other = gradient_sum(comm::MeteredCall::Part::kWhole);
  other.number = 8;
  profile.begins(other);  // no computation: it does not count as overlap
  clock.advance(3ms);
  profile.ends();
  profile.begins(gradient_sum(comm::MeteredCall::Part::kWait));
  clock.advance(2ms);
  profile.ends();
  const json trace = trace_document({profile.take_recording()}, kRun);
  EXPECT_EQ(schema_of(SchemaKind::kTrace).check(trace).size(), 0U);
  const json calls = events_of(trace, 0, "communication");
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_FALSE(calls[0]["args"].contains("overlap_us"));
  EXPECT_EQ(calls[2]["args"]["overlap_us"], 5000.0);
  EXPECT_EQ(calls[2]["args"]["waiting_us"], 0.0) << "all ranks had started it";
  const json flight = events_of(trace, 0, "under way");
  ASSERT_EQ(flight.size(), 2U);
  EXPECT_EQ(flight[0]["ph"], "b");
  EXPECT_EQ(flight[0]["ts"], 1000.0);
  EXPECT_EQ(flight[1]["ph"], "e");
  EXPECT_EQ(flight[1]["ts"], 11000.0);
  EXPECT_EQ(flight[0]["id2"], flight[1]["id2"]);
}

TEST(Trace, AReceiveWaitsForItsSenderAlone) {
  comm::FakeClock clock;
  StepProfile sender([] { return comm::PacketTotals(); }, clock);
  StepProfile receiver([] { return comm::PacketTotals(); }, clock);
  for (StepProfile* profile : {&sender, &receiver}) profile->start_recording(clock.now());
  comm::MeteredCall message = gradient_sum(comm::MeteredCall::Part::kWhole);
  message.source = 0;
  message.destination = 1;
  message.operation = comm::Operation::kSend;
  clock.advance(2ms);
  sender.begins(message);
  clock.advance(3ms);
  message.operation = comm::Operation::kRecv;
  receiver.begins(message);
  clock.advance(1ms);
  sender.ends();
  receiver.ends();
  const json trace = trace_document({sender.take_recording(), receiver.take_recording()}, kRun);
  EXPECT_EQ(events_of(trace, 0, "communication")[0]["args"]["waiting_us"], 0.0) << "a sender waits for nobody";
  EXPECT_EQ(events_of(trace, 1, "communication")[0]["args"]["waiting_us"], 0.0);
}

TEST(StepProfile, TheCallsOfAStepAreThoseOfTrainingAlone) {
  comm::FakeClock clock;
  StepProfile profile([] { return comm::PacketTotals(); }, clock);
  clock.advance(1s);
  const auto origin = clock.now();
  const auto call = [&](const comm::MeteredCall& of_call) {
    profile.begins(of_call);
    clock.advance(2ms);
    profile.ends();
  };
  call(gradient_sum(comm::MeteredCall::Part::kWhole));
  profile.begin_step();  // forgets the calls before
  call(gradient_sum(comm::MeteredCall::Part::kStart));
  call(gradient_sum(comm::MeteredCall::Part::kWait));
  {
    const StepProfile::Scope evaluation(profile, TrainerPhase::kEvaluation);
    call(gradient_sum(comm::MeteredCall::Part::kWhole));
  }
  comm::MeteredCall other = gradient_sum(comm::MeteredCall::Part::kWhole);
  other.number = 8;
  call(other);
  const std::vector<TimedCall> calls = profile.take_calls(origin);
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[0].begin, 2'000'000);
  EXPECT_EQ(calls[0].duration, 2'000'000);
  EXPECT_EQ(calls[0].part, comm::MeteredCall::Part::kStart);
  EXPECT_EQ(calls[1].part, comm::MeteredCall::Part::kWait);
  EXPECT_EQ(calls[0].key, calls[1].key);
  EXPECT_NE(calls[0].key, calls[2].key) << "another number";
  EXPECT_EQ(calls[2].begin, 8'000'000);
  EXPECT_EQ(profile.take_calls(origin).size(), 0U);
}

struct Traced {
  TinyResult result;
  std::vector<json> ranks;
  int traces = 0;
};

Traced train_traced(const RunConfig& config) {
  Traced traced;
  const Corpus corpus = tiny_corpus();
  TrainingHooks hooks;
  hooks.on_line = [&](const MetricsLine& line) { traced.result.lines.push_back(line); };
  hooks.on_trace = [&](const std::vector<json>& ranks) {
    traced.ranks = ranks;
    ++traced.traces;
  };
  comm::run_ranks(config.parallel.world_size(), 30s,
                  [&](comm::Communicator& group) { (void)train(config, corpus, group, hooks); });
  return traced;
}

TEST(TrainerProfile, TheTraceHasTheStepsAndChangesNoResult) {
  RunConfig config = tiny_config();
  lose(config, sim::TrafficClass::kTpForward, 0.2);
  const Traced plain = train_traced(config);
  EXPECT_EQ(plain.traces, 0);
  config.record.profile_steps = {4, 5};
  const Traced traced = train_traced(config);
  EXPECT_EQ(traced.traces, 1);
  EXPECT_EQ(trace_of(traced.result), trace_of(plain.result));
  const json trace = trace_document(traced.ranks, kRun);
  EXPECT_EQ(schema_of(SchemaKind::kTrace).check(trace).size(), 0U);
  std::uint64_t packets = 0;
  std::uint64_t lost = 0;
  for (const std::size_t rank : {0U, 1U}) {
    const json steps = events_of(trace, rank, "step");
    ASSERT_EQ(steps.size(), 2U);
    EXPECT_EQ(steps[0]["args"]["step"], 4);
    EXPECT_EQ(steps[1]["args"]["step"], 5);
    EXPECT_FALSE(events_of(trace, rank, "compute").empty());
    for (const json& call : events_of(trace, rank, "communication")) {
      const json& args = call["args"];
      EXPECT_NEAR(args["waiting_us"].get<double>() + args["transfer_us"].get<double>(), call["dur"].get<double>(),
                  0.01);
      packets += args["packets"].get<std::uint64_t>();
      lost += args["packets_lost"].get<std::uint64_t>();
    }
  }
  EXPECT_GT(packets, 0U);
  EXPECT_GT(lost, 0U);
  EXPECT_LT(lost, packets);
}

/// Microseconds of the step that the spans of the rank's thread cover. The thread does one thing at a time, so spans
/// are apart or one within another.
double covered(const json& trace, std::size_t rank, const json& step) {
  const double begin = step["ts"].get<double>();
  const double end = begin + step["dur"].get<double>();
  std::vector<std::pair<double, double>> spans;
  for (const json& event : trace["traceEvents"]) {
    if (event["pid"] != rank || event["ph"] != "X" || event["tid"] != 1000 * (rank + 1)) continue;
    const double from = std::max(begin, event["ts"].get<double>());
    const double to = std::min(end, event["ts"].get<double>() + event["dur"].get<double>());
    if (from < to) spans.emplace_back(from, to);
  }
  std::sort(spans.begin(), spans.end());
  double sum = 0;
  double until = begin;
  for (const auto& [from, to] : spans) {
    sum += std::max(0.0, to - std::max(from, until));
    until = std::max(until, to);
  }
  return sum;
}

// The best of 44 steps: the system may take the processor away in the gaps of any of them.
TEST(TrainerProfile, ThePartsOfAStepAddUpToIt) {
  RunConfig config = tiny_config();
  config.model = {.layers = 2, .width = 64, .heads = 4, .context = 32, .vocabulary = 64};
  config.training.sequence_tokens = 32;
  config.training.batch_sequences = 16;
  config.parallel.data = 2;
  config.record.profile_steps = {1, 11};
  lose(config, sim::TrafficClass::kTpForward, 0.05);
  const json trace = trace_document(train_traced(config).ranks, kRun);
  EXPECT_EQ(schema_of(SchemaKind::kTrace).check(trace).size(), 0U);
  std::vector<double> shares;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    for (const json& step : events_of(trace, rank, "step")) {
      shares.push_back(covered(trace, rank, step) / step["dur"].get<double>());
      EXPECT_LE(shares.back(), 1.0 + 1e-9);
    }
  }
  ASSERT_EQ(shares.size(), 44U);
  // A sanitizer slows the code between two spans.
  EXPECT_GT(*std::max_element(shares.begin(), shares.end()), kSanitized ? 0.9 : 0.98);
}

TEST(TrainerProfile, ATraceEndsWithTheRun) {
  RunConfig config = tiny_config();
  config.record.profile_steps = {12, 100};
  const Traced traced = train_traced(config);
  EXPECT_EQ(traced.traces, 1);
  EXPECT_EQ(events_of(trace_document(traced.ranks, kRun), 1, "step").size(), 1U);
  config.record.profile_steps = {13, 100};
  EXPECT_EQ(train_traced(config).traces, 0);
}

TEST(TrainerProfile, EachLineSaysWhereTheTimeOfEachRankWent) {
  const Traced traced = train_traced(tiny_config());
  ASSERT_EQ(traced.result.lines.size(), 7U);
  for (const MetricsLine& line : traced.result.lines) {
    ASSERT_EQ(line.ranks.size(), 2U);
    EXPECT_EQ(schema_of(SchemaKind::kMetrics).check(to_json_line(line)).size(), 0U);
    for (const json& rank : line.ranks) {
      const json& phases = rank["wall_seconds"]["phases"];
      EXPECT_TRUE(phases.contains("other")) << phases;
      EXPECT_EQ(phases.contains("evaluation"), line.validation_loss.has_value()) << phases;
      EXPECT_EQ(phases.contains("products"), line.train_loss.has_value()) << phases;
      const json& communication = rank["wall_seconds"]["communication"];
      EXPECT_EQ(communication.contains("tp_forward"), line.train_loss.has_value());
      const json& waiting = rank["wall_seconds"]["waiting"];
      EXPECT_EQ(waiting.contains("tp_forward"), line.train_loss.has_value());
      for (const auto& [name, seconds] : waiting.items()) {
        EXPECT_GE(seconds.get<double>(), 0);
        EXPECT_LE(seconds.get<double>(), communication.at(name).get<double>());
      }
    }
  }
}

}  // namespace
}  // namespace droptest::experiments::trace_test
