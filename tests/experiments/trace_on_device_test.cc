// SPDX-License-Identifier: Apache-2.0
// The trace of runs on the fake device: events tell the phases of the device apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "experiments/records/trace.h"
#include "experiments/schema/schema_kinds.h"
#include "tests/experiments/tiny_run.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace droptest::experiments::trace_on_device_test {
namespace {

using nlohmann::json;

const json kRun = {{"experiment", "e"}, {"run_id", "r"}, {"backend", "local"}, {"layout", "tensor 2"}};

struct Traced {
  std::vector<json> ranks;
  std::vector<double> losses;
  std::uint64_t waits = 0;  ///< number of waits of the host for the device
};

Traced train_traced(const RunConfig& config) {
  const fake_cuda::Scope scope;
  Traced traced;
  const Corpus corpus = tiny_corpus();
  TrainingHooks hooks;
  hooks.on_line = [&](const MetricsLine& line) { traced.losses.push_back(line.train_loss.value_or(0)); };
  hooks.on_trace = [&](const std::vector<json>& ranks) { traced.ranks = ranks; };
  comm::run_ranks(config.parallel.world_size(), std::chrono::seconds(60),
                  [&](comm::Communicator& group) { (void)train(config, corpus, group, hooks); });
  traced.waits = fake_cuda::synchronizations();
  return traced;
}

RunConfig device_config() {
  RunConfig config = tiny_config();
  config.device = Device::kCuda;
  config.training.steps = 6;
  config.parallel.data = 2;
  lose(config, sim::TrafficClass::kTpForward, 0.1);
  return config;
}

TEST(TraceOnDevice, PhasesAndCollectivesOfTheDeviceHaveTracks) {
  RunConfig config = device_config();
  config.record.profile_steps = {3, 4};
  const json trace = trace_document(train_traced(config).ranks, kRun);
  EXPECT_EQ(schema_of(SchemaKind::kTrace).check(trace).size(), 0U);
  for (int rank = 0; rank < 4; ++rank) {
    std::map<int, std::string> tracks;
    std::set<std::string> phases;
    std::set<std::string> classes;
    std::map<int, double> until;
    for (const json& event : trace["traceEvents"]) {
      const int track = event["tid"].get<int>() % 1000;
      if (event["pid"] != rank || track < 2) continue;
      if (event["ph"] == "M") {
        tracks[track] = event["args"]["name"];
        continue;
      }
      ASSERT_TRUE(tracks.contains(track));
      EXPECT_GE(event["ts"].get<double>(), until[track] - 0.01) << "a stream does one thing after the other: " << event;
      until[track] = event["ts"].get<double>() + event["dur"].get<double>();
      if (event["cat"] == "compute") {
        phases.insert(event["name"]);
        const bool may_be_empty = event["name"] == "embedding";  // the tokens are all of another rank's table
        EXPECT_GE(event["dur"].get<double>(), may_be_empty ? 0 : 2 - 0.01) << event;
      } else {
        EXPECT_EQ(event["cat"], "communication");
        classes.insert(event["args"]["class"]);
        EXPECT_GT(event["args"]["bytes"].get<int>(), 0);
      }
    }
    EXPECT_EQ(tracks.at(2), "device");
    EXPECT_GE(tracks.size(), 2U);
    EXPECT_THAT(phases, testing::UnorderedElementsAre("products", "attention", "layer_norm", "cross_entropy",
                                                      "embedding", "gradient_norm", "optimizer"));
    EXPECT_THAT(classes, testing::IsSupersetOf({"tp_forward", "tp_backward", "dp_gradient"}));
  }
}

TEST(TraceOnDevice, EventsChangeNoResultAndAddNoWaitToAStep) {
  const Traced plain = train_traced(device_config());
  RunConfig config = device_config();
  config.record.profile_steps = {1, 2};
  const Traced two = train_traced(config);
  EXPECT_EQ(two.losses, plain.losses);
  config.record.profile_steps = {1, 5};
  const Traced five = train_traced(config);
  EXPECT_EQ(five.losses, plain.losses);
  EXPECT_EQ(five.waits, two.waits) << "waits at the begin and the end of a recording, none in a step";
  EXPECT_EQ(five.ranks.size(), 4U);
}

}  // namespace
}  // namespace droptest::experiments::trace_on_device_test
