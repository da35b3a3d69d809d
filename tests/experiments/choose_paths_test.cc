// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/choose_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/lab/time_simulation.h"
#include "comm/lossy/paths/path_registry.h"
#include "experiments/spec/dry_run.h"
#include "tests/comm/error_text.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::choose_paths_test {
namespace {

using nlohmann::json;
using sim::TrafficClass;

/// Eight replicas of nano in two groups with slow links between them; buckets of several sizes.
std::vector<std::string> replicas(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {
      "/parallel/tensor=1",
      "/parallel/data=8",
      "/parallel/bucket_bytes=1048576",
      "/parallel/first_bucket_bytes=2048",
      R"(/network={"path": "auto", "group_ranks": 4, "loss": {"model": "none"}})",
      R"(/time={"link": {"latency_microseconds": 10, "bandwidth_gbit_per_second": 10}, "compute_milliseconds": 1,
                "groups": {"ranks": 4, "link": {"latency_microseconds": 2, "bandwidth_gbit_per_second": 400}}})"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

double seconds_on(std::string_view path, const PlannedCollective& planned, const comm::TimeModel& model) {
  comm::FateSimulation simulation = planned.call;
  simulation.network.path = path;
  simulation.network.group_ranks = 4;
  return comm::simulate_time(simulation, model).seconds.at(0);
}

// Small messages take as long as their latencies, of which `direct` has the fewest; of large ones it keeps the
// receiving ports of slow links waiting.
TEST(ChoosePaths, EachBucketTakesThePathOfLeastTime) {
  const RunConfig config = resolved(kTwoRanks, replicas({})).config;
  const comm::ClassNetwork& network = *config.network.of(TrafficClass::kDpGradient);
  EXPECT_EQ(network.path, "halving_doubling");
  EXPECT_EQ(network.path_of(256), "direct");
  comm::TimeModel model = *config.time;
  model.compute_seconds = 0;
  std::size_t sizes = 0;
  const DryRun run(config);
  for (const PlannedCollective& planned : run.of(TrafficClass::kDpGradient)) {
    ++sizes;
    const double chosen = seconds_on(network.path_of(planned.call.elements), planned, model);
    for (const comm::PathEntry& path : comm::paths()) {
      if (path.schedule == nullptr) continue;
      EXPECT_GE(seconds_on(path.name, planned, model), chosen) << path.name;
    }
  }
  EXPECT_GE(sizes, 3U);
}

TEST(ChoosePaths, TheChoiceIsRecordedAndPartOfTheRun) {
  const ResolvedRun run = resolved(kTwoRanks, replicas({}));
  const json& section = run.spec.at("network").at("classes").at("dp_gradient");
  EXPECT_NE(section.at("path"), "auto");
  ASSERT_TRUE(section.contains("sized_paths"));
  EXPECT_EQ(resolve(run.spec, "again").run_id, run.run_id);
  const ResolvedRun faster = resolved(kTwoRanks, replicas({"/time/groups/link/bandwidth_gbit_per_second=10"}));
  EXPECT_FALSE(faster.spec.at("network").at("classes").at("dp_gradient").contains("sized_paths"))
      << "on equal links direct is the fastest for every size";
}

// The gather half of contribution loses nothing, so its network differs from that of the other paths.
TEST(ChoosePaths, PathsOfOneClassLoseAlike) {
  const ResolvedRun run = resolved(
      kTwoRanks, replicas({R"(/network={"path": "auto", "loss": {"model": "bernoulli", "loss_rate": 0.05}})"}));
  const comm::ClassNetwork& network = *run.config.network.of(TrafficClass::kDpGradient);
  const auto travels = [](std::string_view path) { return comm::path_entry(path).shorthand; };
  for (const comm::SizedPath& small : network.sized_paths) EXPECT_EQ(travels(small.path), travels(network.path));
  EXPECT_EQ(network.gather.loss != nullptr, travels(network.path) == comm::LossShorthand::kBothHalves);
}

// A fill that only one path has narrows the choice to that path.
TEST(ChoosePaths, PathsThatCannotHaveTheNetworkAreLeftOut) {
  const ResolvedRun run = resolved(
      kTwoRanks,
      replicas(
          {R"(/network={"path": "auto", "loss": {"model": "bernoulli", "loss_rate": 0.05}, "reduce": {"fill": "own"}})"}));
  const comm::ClassNetwork& network = *run.config.network.of(TrafficClass::kDpGradient);
  EXPECT_EQ(network.path, "direct");
  EXPECT_TRUE(network.sized_paths.empty());
}

TEST(ChoosePaths, AClassMayAskForItselfAndOthersKeepTheirs) {
  const ResolvedRun run = resolved(kTwoRanks, replicas({"/parallel/tensor=2", "/network/path=ring",
                                                        R"(/network/classes={"dp_gradient": {"path": "auto"}})"}));
  EXPECT_EQ(run.config.network.of(TrafficClass::kTpForward)->path, "ring");
  EXPECT_NE(run.spec["network"]["classes"]["dp_gradient"]["path"], "auto");
}

// A frozen embedding on two ranks has a class, but no message, so there is no path to choose.
TEST(ChoosePaths, AClassWithoutMessagesIsOnTheDirectPath) {
  const ResolvedRun run =
      resolved(kTwoRanks, replicas({"/parallel/data=1", "/parallel/pipeline=2", "/network/path=ring",
                                    R"(/training/tensors=[{"match": "wte*", "frozen": true}])",
                                    R"(/network/classes={"embedding_gradient": {"path": "auto"}})"}));
  EXPECT_EQ(run.config.network.of(TrafficClass::kEmbeddingGradient)->path, "direct");
  EXPECT_EQ(run.config.network.of(TrafficClass::kPpActivation)->path, "ring");
}

TEST(ChoosePaths, WithoutTimeThereIsNoChoice) {
  EXPECT_THAT(config_error_of([] { resolved(kTwoRanks, {"/network/path=auto"}); }),
              testing::HasSubstr(R"(/network/path: got "auto" without a time section, want one (/time))"));
  EXPECT_THAT(config_error_of([] {
                resolved(kTwoRanks, {"/parallel/data=2", R"(/network/classes={"dp_gradient": {"path": "auto"}})"});
              }),
              testing::HasSubstr(R"(/network/classes/dp_gradient/path: got "auto" without a time section)"));
}

}  // namespace
}  // namespace droptest::experiments::choose_paths_test
