// SPDX-License-Identifier: Apache-2.0
// Runs that save less memory have the records of those that save all activations: every way to save memory, on every
// path with every fill, in every kind of layout, with both kinds of loss.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "comm/lossy/paths/path_registry.h"
#include "experiments/records/loss_statistics_record.h"
#include "experiments/records/run_records.h"
#include "experiments/run/run_forecast.h"
#include "experiments/spec/memory_strategy.h"
#include "sim/error.h"
#include "sim/loss/gilbert_elliott.h"
#include "tests/experiments/layouts_of_runs.h"
#include "tests/sanitizers.h"

namespace droptest::experiments::recomputation_test {
namespace {

using comm::Consistency;
using comm::Fill;
using models::Recompute;
using models::RecomputeTraffic;
using sim::TrafficClass;
using Process = std::shared_ptr<const sim::LossProcess>;

constexpr const char* kResent = "tp_recomputation";

struct Policy {
  const char* name;
  MemoryConfig memory;
};

std::vector<Policy> policies() {
  constexpr auto kFull = Recompute::kBlock;
  constexpr auto kSent = RecomputeTraffic::kSent;
  return {{"selective", {.recompute = Recompute::kSelective}},
          {"full", {.recompute = kFull}},
          {"every second", {.recompute = kFull, .every = 2}},
          {"offloaded", {.recompute = kFull, .place = {.offloaded = true}}},
          {"sent", {.recompute = kFull, .traffic = kSent}},
          {"every second sent, offloaded",
           {.recompute = kFull, .every = 2, .place = {.offloaded = true}, .traffic = kSent}},
          {"cut", {.recompute = kFull, .place = {.cut = true}}},
          {"cut and offloaded", {.recompute = kFull, .place = {.cut = true, .offloaded = true}}},
          {"cut and sent", {.recompute = kFull, .place = {.cut = true}, .traffic = kSent}}};
}

bool fits(const Policy& policy, const RunConfig& config) {
  const bool needs_ranks = policy.memory.place.cut || policy.memory.traffic == RecomputeTraffic::kSent;
  if (needs_ranks && config.parallel.tensor == 1) return false;
  return !policy.memory.place.cut || why_ranks_differ(config).empty();
}

/// Losses and norms of each step, and the records of fates. The traffic of recomputation is apart.
struct Records {
  std::string text;
  std::map<std::string, std::uint64_t> packets;
};

Records records_of(const RunConfig& config) {
  const TinyResult result = train_locally(config, tiny_corpus());
  nlohmann::json statistics = loss_statistics_json(result.outcome.statistics, config.network);
  statistics["classes"].erase(kResent);
  return {nlohmann::json(trace_of(result)).dump() + statistics.dump(), sent_packets(result)};
}

/// The network of recomputation is that of tp_forward, except the fill.
void send_again(RunConfig& config) {
  auto& again = config.network.of(TrafficClass::kTpRecomputation);
  again = config.network.of(TrafficClass::kTpForward);
  comm::apply_fill(*again, Fill::kZero);
}

/// The number of policies that the run can have.
int expect_no_change(RunConfig config) {
  config.memory = {};
  const Records want = records_of(config);
  int number = 0;
  for (const Policy& policy : policies()) {
    if (!fits(policy, config)) continue;
    ++number;
    // Programs with sanitizers are slow: the policies with offload and the selective one have the code of all.
    if (kSanitized && !policy.memory.place.offloaded && policy.memory.recompute == Recompute::kBlock) continue;
    SCOPED_TRACE(policy.name);
    RunConfig other = config;
    other.memory = policy.memory;
    if (policy.memory.traffic == RecomputeTraffic::kSent) send_again(other);
    Records got = records_of(other);
    EXPECT_EQ(got.text, want.text);
    EXPECT_EQ(got.packets, expected_packets(other));
    EXPECT_EQ(got.packets.erase(kResent), policy.memory.traffic == RecomputeTraffic::kSent ? 1U : 0U);
    EXPECT_EQ(got.packets, want.packets);
  }
  config.sharding.offloads_values = config.sharding.offloads_moments = true;
  EXPECT_EQ(records_of(config).text, want.text) << "parameters and optimizer offloaded";
  return number;
}

RunConfig small_run() {
  RunConfig config = tiny_config();
  config.model.layers = 2;
  config.model.heads = 8;
  config.training.steps = 2;
  config.training.batch_sequences = 2;
  config.training.sequence_tokens = 8;
  config.validation.tokens = 16;
  config.record.every_steps = 1;
  config.record.sample_every_steps = 2;
  return config;
}

const Process kBernoulli = std::make_shared<sim::Bernoulli>(0.05);
const Process kBursts = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.05, 8));

comm::ClassNetwork network(std::string_view path, Fill fill, const Process& process) {
  comm::ClassNetwork network;
  network.payload_bytes = 64;
  network.path = path;
  if (comm::path_entry(path).has_groups) network.group_ranks = 2;
  comm::apply_loss(network, process);
  comm::apply_fill(network, fill);
  if (comm::reduce_fill_refusal(network.reduce.fill, path)) network.reduce.fill = Fill::kZero;
  return network;
}

std::string test_name(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return text;
}

struct PathCase {
  std::string name;
  comm::ClassNetwork network;
};
void PrintTo(const PathCase& item, std::ostream* out) { *out << item.name; }

bool is_valid(const comm::ClassNetwork& network) {
  try {
    comm::validate(network);
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

/// Each path with each fill that has a meaning there, with both processes, and with shared fates if the path supports
/// them.
std::vector<PathCase> path_cases() {
  std::vector<PathCase> cases;
  for (const comm::PathEntry& path : comm::paths()) {
    for (const comm::FillEntry& fill : comm::fills()) {
      const comm::ClassNetwork tried = network(path.name, fill.fill, kBernoulli);
      const bool gathers = tried.gather.loss != nullptr && fill.has_meaning_in_gather_half(TrafficClass::kTpForward);
      if ((tried.reduce.fill != fill.fill && !gathers) || !is_valid(tried)) continue;
      for (const bool bursts : {false, true}) {
        PathCase item{std::string(path.name) + " " + std::string(fill.name) + (bursts ? " bursts" : ""),
                      network(path.name, fill.fill, bursts ? kBursts : kBernoulli)};
        item.name = test_name(item.name);
        cases.push_back(item);
        if (!path.can_share || path.name == "contribution" || fill.fill != Fill::kZero) continue;
        item.network.consistency = Consistency::kShared;
        item.name += "_shared";
        cases.push_back(item);
      }
    }
  }
  return cases;
}

class RecomputationOnPaths : public testing::TestWithParam<PathCase> {};

TEST_P(RecomputationOnPaths, ChangesNoBit) {
  RunConfig config = small_run();
  config.parallel.tensor = 4;
  for (const TrafficClass of : {TrafficClass::kTpForward, TrafficClass::kTpBackward}) {
    config.network.of(of) = GetParam().network;
  }
  const bool can_cut =
      GetParam().network.path == "contribution" || GetParam().network.consistency == Consistency::kShared;
  EXPECT_EQ(expect_no_change(config), can_cut ? 9 : 6);
}

INSTANTIATE_TEST_SUITE_P(Paths, RecomputationOnPaths, testing::ValuesIn(path_cases()),
                         [](const auto& item) { return item.param.name; });

struct LayoutCase {
  const char* name;
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  int zero = 0;
  models::ScheduleKind schedule = models::ScheduleKind::kOneForwardOneBackward;
  int chunks = 1;
};
void PrintTo(const LayoutCase& item, std::ostream* out) { *out << item.name; }

constexpr LayoutCase kLayouts[] = {
    {.name = "tensor2", .tensor = 2},
    {.name = "tensor8", .tensor = 8},
    {.name = "data8", .data = 8},
    {.name = "data2_tensor4", .data = 2, .tensor = 4},
    {.name = "data4_tensor2", .data = 4, .tensor = 2},
    {.name = "zero1", .data = 2, .tensor = 2, .zero = 1},
    {.name = "zero2", .data = 2, .tensor = 2, .zero = 2},
    {.name = "zero3", .data = 2, .tensor = 4, .zero = 3},
    {.name = "pipeline2_tensor4", .pipeline = 2, .tensor = 4},
    {.name = "pipeline4_tensor2", .pipeline = 4, .tensor = 2},
    {.name = "data2_pipeline2_tensor2_zero1", .data = 2, .pipeline = 2, .tensor = 2, .zero = 1},
    {.name = "zero_bubble", .pipeline = 2, .tensor = 2, .schedule = models::ScheduleKind::kZeroBubble},
    {.name = "interleaved", .pipeline = 2, .tensor = 2, .schedule = models::ScheduleKind::kInterleaved, .chunks = 2},
};

RunConfig run_of(const LayoutCase& layout) {
  RunConfig config = small_run();
  config.parallel.data = layout.data;
  config.parallel.pipeline = layout.pipeline;
  config.parallel.tensor = layout.tensor;
  config.pipeline.schedule = layout.schedule;
  config.pipeline.chunks = layout.chunks;
  config.sharding.zero = layout.zero;
  if (layout.pipeline > 1) config.model.layers = 4;
  config.training.accumulation = layout.pipeline > 1 || layout.zero > 0 ? 2 : 1;
  config.sharding.micro_batches = config.training.accumulation;
  if (layout.zero >= 2) config.sharding.reduce = models::ShardOptions::Reduce::kAfterEach;
  return config;
}

class RecomputationInRuns : public testing::TestWithParam<LayoutCase> {};

TEST_P(RecomputationInRuns, ChangesNoBitWhereAllClassesLose) {
  RunConfig config = run_of(GetParam());
  std::vector<TrafficClass> classes;
  if (config.parallel.tensor > 1) classes = {TrafficClass::kTpForward, TrafficClass::kTpBackward};
  if (config.parallel.data > 1) classes.push_back(TrafficClass::kDpGradient);
  // Parameters that both passes gather are refused if they can differ: MemorySection.
  if (config.sharding.shards_state() && !config.sharding.shards_values()) {
    classes.push_back(TrafficClass::kParameterGather);
  }
  if (config.parallel.pipeline > 1) {
    classes.insert(classes.end(),
                   {TrafficClass::kPpActivation, TrafficClass::kPpGradient, TrafficClass::kEmbeddingGradient});
  }
  for (const Process& process : {kBernoulli, kBursts}) {
    for (const TrafficClass of : classes) config.network.of(of) = network("direct", Fill::kStale, process);
    EXPECT_EQ(expect_no_change(config), config.parallel.tensor > 1 ? 6 : 4);
  }
}

TEST_P(RecomputationInRuns, ChangesNoBitWhereActivationsAreCut) {
  RunConfig config = run_of(GetParam());
  if (config.parallel.tensor == 1) GTEST_SKIP() << "nothing to cut over";
  for (const TrafficClass of : {TrafficClass::kTpForward, TrafficClass::kTpBackward}) {
    config.network.of(of) = network("contribution", Fill::kZero, kBursts);
  }
  EXPECT_EQ(expect_no_change(config), 9);
}

INSTANTIATE_TEST_SUITE_P(Layouts, RecomputationInRuns, testing::ValuesIn(kLayouts),
                         [](const auto& item) { return std::string(item.param.name); });

RunConfig sent(const LayoutCase& layout, RecomputeTraffic traffic) {
  RunConfig config = run_of(layout);
  for (const TrafficClass of : {TrafficClass::kTpForward, TrafficClass::kTpBackward}) lose(config, of, 0.05);
  config.memory.recompute = Recompute::kBlock;
  config.memory.traffic = traffic;
  if (traffic == RecomputeTraffic::kSent) send_again(config);
  return config;
}

// Once for each block, and twice if the backward pass is in two parts.
TEST(SentTraffic, RepeatsTheSumsOfAllBlocks) {
  for (const auto& [layout, times] :
       {std::pair(LayoutCase{.name = "tensor", .tensor = 4}, 1),
        std::pair(
            LayoutCase{
                .name = "zero bubble", .pipeline = 2, .tensor = 2, .schedule = models::ScheduleKind::kZeroBubble},
            2)}) {
    const RunConfig config = sent(layout, RecomputeTraffic::kSent);
    auto packets = sent_packets(train_locally(config, tiny_corpus()));
    const auto blocks = static_cast<std::uint64_t>(config.model.layers);
    // One of the sums of tp_forward is that of the embedding.
    EXPECT_EQ(packets[kResent],
              static_cast<std::uint64_t>(times) * packets["tp_forward"] / (2 * blocks + 1) * 2 * blocks)
        << layout.name;
  }
}

TEST(SentTraffic, TakesVirtualTime) {
  const LayoutCase layout{.name = "tensor", .tensor = 4};
  RunConfig saved = sent(layout, RecomputeTraffic::kKept);
  set_time(saved, {1e-6, 1e9}, 1e-3);
  RunConfig kept = saved;
  saved.memory = {};
  RunConfig again = sent(layout, RecomputeTraffic::kSent);
  again.time = kept.time;
  const auto time_of = [](const RunConfig& config) { return *train_locally(config, tiny_corpus()).outcome.time; };
  const comm::VirtualTime of_saved = time_of(saved);
  const comm::VirtualTime of_kept = time_of(kept);
  const comm::VirtualTime of_sent = time_of(again);
  EXPECT_EQ(of_kept.seconds, of_saved.seconds);
  EXPECT_EQ(of_kept.exposed_in(TrafficClass::kTpRecomputation), 0);
  const double more = of_sent.exposed_in(TrafficClass::kTpRecomputation);
  EXPECT_GT(more, 0);
  EXPECT_NEAR(of_sent.seconds, of_kept.seconds + more, 1e-9);
  EXPECT_NEAR(of_sent.exposed_in(TrafficClass::kTpForward), of_kept.exposed_in(TrafficClass::kTpForward), 1e-9);
}

TEST(SentTraffic, IsTheSameOverGloo) {
  if (!comm::backend_entry("gloo").built) GTEST_SKIP() << "the gloo backend was not built";
  const RunConfig config = sent({.name = "data2_tensor2", .data = 2, .tensor = 2}, RecomputeTraffic::kSent);
  const TinyResult local = train_locally(config, tiny_corpus());
  const TinyResult gloo = train_over_gloo(config, tiny_corpus());
  EXPECT_EQ(trace_of(gloo), trace_of(local));
  EXPECT_EQ(loss_statistics_json(gloo.outcome.statistics, config.network),
            loss_statistics_json(local.outcome.statistics, config.network));
}

// No value is compared with the values that would have arrived.
TEST(SentTraffic, IsNotSampled) {
  RunConfig config = sent({.name = "tensor", .tensor = 2}, RecomputeTraffic::kSent);
  config.record.sample_every_steps = 1;
  const nlohmann::json classes =
      loss_statistics_json(train_locally(config, tiny_corpus()).outcome.statistics, config.network)["classes"];
  EXPECT_GT(classes["tp_forward"]["sampled_calls"], 0);
  EXPECT_EQ(classes[kResent]["sampled_calls"], 0);
}

TEST(Recomputation, HasAPhaseAndItsTrafficAClassInTheBreakdown) {
  const auto seconds_of = [](const RunConfig& config) {
    return train_locally(config, tiny_corpus()).lines.back().ranks.at(0)["wall_seconds"];
  };
  RunConfig config = sent({.name = "tensor", .tensor = 2}, RecomputeTraffic::kSent);
  const nlohmann::json with = seconds_of(config);
  EXPECT_TRUE(with["phases"].contains("recomputation"));
  EXPECT_TRUE(with["communication"].contains(kResent));
  config.memory = {};
  const nlohmann::json without = seconds_of(config);
  EXPECT_FALSE(without["phases"].contains("recomputation"));
  EXPECT_FALSE(without["communication"].contains(kResent));
}

}  // namespace
}  // namespace droptest::experiments::recomputation_test
