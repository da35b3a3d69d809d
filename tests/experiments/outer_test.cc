// SPDX-License-Identifier: Apache-2.0
// Outer steps in whole runs: specs that are refused, their memory, and the virtual time of a quorum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "experiments/training/memory_estimate.h"
#include "sim/error.h"
#include "sim/time/straggler.h"
#include "tests/experiments/layouts_of_runs.h"
#include "tests/experiments/resolved_spec.h"
#include "tests/experiments/tiny_run.h"

namespace droptest::experiments::outer_test {
namespace {

using testing::HasSubstr;

const char* const kWorkers = R"({"name": "t", "data": {"text": "a.txt"}, "parallel": {"data": 3},
    "outer": {"every_steps": 4}, "network": {"classes": {"outer": {"path": "contribution", "payload_bytes": 1073741824,
      "fill": "count_rescale", "loss": {"model": "bernoulli", "loss_rate": "5%"}}}}})";
const char* const kTime =
    R"(/time={"link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1}, "compute_milliseconds": 10})";

std::string refusal(const std::vector<std::string>& overrides) {
  try {
    resolved(kWorkers, overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(OuterSection, ARunThatEndsBeforeItsFirstOuterStepHasTheNetworkOfOuterSteps) {
  const ResolvedRun run = resolved(kWorkers, {"/training/steps=3", "/training/warmup_steps=1"});
  EXPECT_EQ(run.config.network.of(sim::TrafficClass::kOuter)->path, "contribution");
  EXPECT_TRUE(run.warnings.empty());
  EXPECT_THAT(refusal({"/training/steps=3", "/training/warmup_steps=1",
                       R"(/network/classes={"outer": {"path": "ring", "loss": {"model": "none"}}})", kTime}),
              HasSubstr("want the path contribution"));
}

TEST(OuterSection, RefusesWhatHasNoMeaning) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_THAT(refusal({"/parallel/data=1"}), HasSubstr("/outer: got outer steps with /parallel/data 1, want at least"));
  EXPECT_THAT(refusal({"/outer/delay_steps=4"}), HasSubstr("/outer/delay_steps: got 4, want less than"));
  EXPECT_THAT(refusal({"/outer/fragments=5"}), HasSubstr("/outer/fragments: got 5, want at most"));
  EXPECT_THAT(refusal({"/parallel/zero=1"}), HasSubstr("/parallel/zero: got 1 with /outer, want 0"));
  EXPECT_THAT(refusal({R"(/training/precision={"compute":"float16"})"}), HasSubstr("/training/loss_scale: got a loss"));
  EXPECT_THAT(refusal({"/network/classes/outer/path=direct"}),
              HasSubstr("/network/classes/outer/path: got the path direct for the class outer"));
  EXPECT_THAT(refusal({R"(/network/classes/outer/recovery={"error_feedback":"ef21"})"}),
              HasSubstr("/network/classes/outer/recovery"));
}

TEST(OuterSection, AveragesHaveNoRates) {
  const ResolvedRun run = resolved(kWorkers, {"/outer/optimizer=average", "/outer/learning_rate=0.5"});
  EXPECT_FALSE(run.spec["outer"].contains("learning_rate"));
  EXPECT_FALSE(run.spec["outer"].contains("momentum"));
  EXPECT_EQ(run.run_id, resolved(kWorkers, {"/outer/optimizer=average"}).run_id);
  EXPECT_EQ(resolve(run.spec, "again").run_id, run.run_id);
}

TEST(OuterSection, AQuorumNeedsAClock) {
  EXPECT_THAT(refusal({"/outer/quorum=2"}),
              HasSubstr("/outer/quorum: got a quorum of 2 messages without a clock, so that no message has a time"));
  EXPECT_THAT(refusal({"/outer/quorum=4", kTime}), HasSubstr("/outer/quorum: got 4, want at most /parallel/data 3"));
  EXPECT_THAT(refusal({"/outer/grace_seconds=1", kTime}),
              HasSubstr("/outer/grace_seconds: got 1.0 without /outer/quorum, want both"));
  EXPECT_THAT(refusal({"/outer/quorum=2", kTime, "/time/compute_milliseconds=measured"}),
              HasSubstr("/outer/quorum: got a quorum of 2 messages with measured compute time"));
  EXPECT_THAT(refusal({"/outer/quorum=2", kTime, "/time/deadline_microseconds=5"}), HasSubstr("with a deadline"));
  EXPECT_THAT(refusal({"/outer/quorum=2", kTime, R"(/time/retransmission={"protocol": "selective_repeat"})"}),
              HasSubstr("/outer/quorum: got a quorum of 2 messages with the recovery selective_repeat"));
  EXPECT_THAT(refusal({"/outer/quorum=2", kTime, "/network/classes/outer/fill=inverse_probability"}),
              HasSubstr("/outer/quorum: got a quorum of 2 messages with the fill inverse_probability"));
}

// Late messages are lost without any loss process, so the fill acts.
TEST(OuterSection, AQuorumKeepsTheFillOfALosslessClass) {
  const std::string lossless = R"(/network/classes/outer/loss={"model":"none"})";
  const auto fill = [&](const std::vector<std::string>& overrides) {
    return resolved(kWorkers, overrides).config.network.of(sim::TrafficClass::kOuter)->reduce.fill;
  };
  EXPECT_EQ(fill({lossless, kTime}), comm::Fill::kZero);
  EXPECT_EQ(fill({lossless, kTime, "/outer/quorum=2"}), comm::Fill::kCountRescale);
  const ResolvedRun run = resolved(kWorkers, {lossless, kTime, "/outer/quorum=2", "/outer/grace_seconds=0.25"});
  const comm::Quorum quorum = *run.config.network.of(sim::TrafficClass::kOuter)->quorum;
  EXPECT_EQ(quorum.ranks, 2);
  EXPECT_EQ(quorum.grace_seconds, 0.25);
  EXPECT_EQ(resolve(run.spec, "again").run_id, run.run_id);
  EXPECT_NE(resolved(kWorkers, {lossless, kTime, "/outer/quorum=2"}).run_id, run.run_id);
}

/// Three workers of a small model, with an outer step every three of twelve steps.
RunConfig workers() {
  RunConfig config = tiny_config();
  config.parallel.tensor = 1;
  config.parallel.data = 3;
  config.outer.every_steps = 3;
  comm::ClassNetwork& network = config.network.of(sim::TrafficClass::kOuter).emplace();
  network.path = "contribution";
  network.payload_bytes = std::uint64_t{1} << 30U;
  network.reduce.fill = comm::Fill::kCountRescale;
  return config;
}

// Between outer steps a worker does not wait for others: its clock advances by its own compute times. An outer step
// waits for the second worker and the grace.
TEST(OuterRun, TakesTheTimeOfItsQuorum) {
  constexpr double kCompute = 0.01, kGrace = 0.001;
  const sim::LinkCost link{5e-4, 1e8};
  for (const int quorum : {1, 2, 3}) {
    RunConfig config = workers();
    config.network.of(sim::TrafficClass::kOuter)->quorum = {quorum, kGrace};
    comm::TimeModel& time = config.time.emplace();
    time.links = {link, link, 0};
    time.compute_seconds = kCompute;
    time.compute_p99_over_p50 = 2;
    config.network.seed = 3;
    const TinyResult got = train_locally(config, tiny_corpus());

    const RunConfig without = workers();
    std::uint64_t elems = 0;
    for (const auto& [name, tensor] : [&] {
           RunConfig with_weights = without;
           with_weights.record.weights = RecordConfig::Weights::kFinal;
           return train_locally(with_weights, tiny_corpus()).outcome.weights;
         }()) {
      elems += tensor.bytes.size() / sizeof(float);
    }
    const double message = link.latency_seconds + static_cast<double>(elems) * sizeof(float) / link.bytes_per_second;
    const sim::Straggler straggler(2);
    std::array<double, 3> clocks{};
    std::uint64_t late = 0;
    for (std::uint64_t step = 1; step <= 12; ++step) {
      for (std::uint64_t rank = 0; rank < 3; ++rank) {
        clocks[rank] += kCompute * straggler.factor(3, sim::Purpose::kComputeStraggler, rank, step);
      }
      if (step % 3 != 0) continue;
      std::array<double, 3> ends = clocks;
      for (double& end : ends) end += message;
      std::array<double, 3> sorted = ends;
      std::ranges::sort(sorted);
      const double limit = sorted[static_cast<std::size_t>(quorum) - 1] + kGrace;
      const double complete = std::min(limit, sorted[2]);
      for (std::size_t rank = 0; rank < 3; ++rank) {
        if (ends[rank] > limit) ++late;
        clocks[rank] = std::max(clocks[rank], complete + link.latency_seconds);
      }
    }
    ASSERT_TRUE(got.outcome.time.has_value());
    EXPECT_NEAR(got.outcome.time->seconds, *std::ranges::max_element(clocks), 1e-9) << quorum;
    EXPECT_EQ(got.outcome.time->late, late) << quorum;
    EXPECT_EQ(late > 0, quorum < 3);
    if (quorum == 3) {
      EXPECT_EQ(trace_of(got), trace_of(train_locally(without, tiny_corpus())));
    }
  }
}

// A worker of two tensor-parallel ranks sends the parts of its weights separately, and trains like a worker of one
// rank. If workers are nearer to each other than stages are, the distances between a worker's own ranks count.
TEST(OuterRun, LayoutsOfAWorkerTrainAlike) {
  for (const models::OuterOptimizer optimizer : {models::OuterOptimizer::kNesterov, models::OuterOptimizer::kAverage}) {
    std::vector<TinyResult> results;
    for (const auto& [tensor, pipeline, order] :
         {std::tuple(1, 1, comm::kDefaultOrder), std::tuple(2, 1, comm::kDefaultOrder),
          std::tuple(1, 2, comm::kDefaultOrder), std::tuple(1, 2, comm::kMegatronOrder)}) {
      RunConfig config = workers();
      config.model.layers = 2;
      config.parallel.tensor = tensor;
      config.parallel.pipeline = pipeline;
      config.parallel.order = order;
      config.training.accumulation = 2;
      config.outer.optimizer = optimizer;
      config.outer.learning_rate = 0.5;
      results.push_back(train_locally(config, tiny_corpus()));
      expect_same_training(results.back(), results.front());
    }
    RunConfig alone = workers();
    alone.model.layers = 2;
    alone.training.accumulation = 2;
    alone.outer.every_steps = 100;
    EXPECT_NE(trace_of(train_locally(alone, tiny_corpus())), trace_of(results.front())) << "outer steps have an effect";
  }
}

// Workers that lose all messages are those that never send one. Each clips by its own norm: with SGD a step is as long
// as the learning rate times the limit.
TEST(OuterRun, WithoutAnyMessageWorkersTrainAlone) {
  const auto train_with = [](std::uint64_t every, double loss_rate) {
    RunConfig config = workers();
    config.record.weights = RecordConfig::Weights::kFinal;
    config.outer.every_steps = every;
    const comm::ClassNetwork without = *config.network.of(sim::TrafficClass::kOuter);
    lose(config, sim::TrafficClass::kOuter, loss_rate);
    comm::ClassNetwork& network = *config.network.of(sim::TrafficClass::kOuter);
    network.path = without.path;
    network.payload_bytes = without.payload_bytes;
    network.gather = without.gather;
    return train_locally(config, tiny_corpus());
  };
  const TinyResult silent = train_with(3, 1);
  expect_same_training(silent, train_with(100, 0));
  EXPECT_NE(trace_of(silent), trace_of(train_with(3, 0)));
}

TEST(OuterRun, EachWorkerClipsByItsOwnNorm) {
  constexpr double kRate = 0.01, kLimit = 0.125;
  const auto weights_after_a_step = [](double rate) {
    RunConfig config = workers();
    config.training.steps = 1;
    config.training.optimizer.rule = models::OptimizerConfig::Rule::kSgd;
    config.training.optimizer.momentum = config.training.optimizer.weight_decay = 0;
    config.training.gradient_clip = kLimit;
    config.training.learning_rate = {.peak = rate, .floor = rate, .warmup_steps = 0, .total_steps = 1};
    config.validation.every_steps = 1;
    config.record.weights = RecordConfig::Weights::kFinal;
    return train_locally(config, tiny_corpus()).outcome.weights;
  };
  const models::StoredTensors once = weights_after_a_step(kRate);
  double square = 0;
  for (const auto& [name, twice] : weights_after_a_step(2 * kRate)) {
    const auto* a = reinterpret_cast<const float*>(twice.bytes.data());
    const auto* b = reinterpret_cast<const float*>(once.at(name).bytes.data());
    for (std::size_t i = 0; i < twice.bytes.size() / sizeof(float); ++i) {
      const double difference = static_cast<double>(a[i]) - b[i];
      square += difference * difference;
    }
  }
  EXPECT_NEAR(std::sqrt(square), kRate * kLimit, 1e-3 * kRate * kLimit);
}

// The plan of a run's memory has the references, momentum and messages of its outer steps.
TEST(OuterRun, TakesThePlannedMemory) {
  for (const models::OuterOptimizer optimizer : {models::OuterOptimizer::kNesterov, models::OuterOptimizer::kAverage}) {
    for (const int fragments : {1, 2}) {
      for (const int tensor : {1, 2}) {
        RunConfig config = workers();
        config.parallel.tensor = tensor;
        config.outer.optimizer = optimizer;
        config.outer.fragments = fragments;
        config.record.every_steps = 1;
        lose(config, sim::TrafficClass::kOuter, 0.1);
        config.network.of(sim::TrafficClass::kOuter)->path = "contribution";
        config.network.of(sim::TrafficClass::kOuter)->gather.fill = comm::Fill::kOwn;
        const MemoryEstimate want = estimate_memory(config);
        EXPECT_GT(want.outer, want.model.gradients) << "three or four vectors of a rank's elements";
        std::uint64_t most = 0, outer = 0;
        for (const TrainingOutcome& outcome : train_locally(config, tiny_corpus()).by_rank) {
          std::uint64_t total = 0;
          for (const auto& [kind, peak] : outcome.memory.of_model) total += peak.bytes;
          most = std::max(most, total);
          outer = std::max(outer, outcome.memory.of_model.at("outer").bytes);
        }
        EXPECT_EQ(outer, want.outer);
        EXPECT_EQ(most, want.model.total() + want.collectives + want.loss_layer + want.outer);
      }
    }
  }
}

}  // namespace
}  // namespace droptest::experiments::outer_test
