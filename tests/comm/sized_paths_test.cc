// SPDX-License-Identifier: Apache-2.0
// A class that sends its small collectives over another path.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/lab/time_simulation.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "tests/comm/timed_network.h"

namespace droptest::comm::sized_paths_test {
namespace {

constexpr int kRanks = 4;
constexpr std::uint64_t kSmall = 256;
constexpr std::uint64_t kLarge = 8192;

ClassNetwork network_of(std::string_view path, std::vector<SizedPath> sized = {}) {
  ClassNetwork network;
  network.path = path;
  network.sized_paths = std::move(sized);
  network.payload_bytes = 64;
  network.reduce.loss = std::make_shared<sim::Bernoulli>(0.2);
  network.gather.loss = network.reduce.loss;
  return network;
}

struct Outcome {
  std::vector<float> values;  // rank 1's
  std::uint64_t digest = 0;
  double seconds = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

enum class Kind { kAllReduce, kReduceScatter, kAllGather };

Outcome run(const ClassNetwork& network, Kind kind, std::uint64_t elements) {
  Outcome outcome;
  run_ranks(kRanks, std::chrono::seconds(20), [&](Communicator& inner) {
    LossyOptions options;
    options.network.seed = 3;
    options.network.of(kClass) = network;
    options.time = model_of();
    LossyCommunicator lossy(inner, options);
    const Message message{kClass, "m"};
    const std::vector<std::uint64_t> counts = even_counts(elements, kRanks);
    std::vector<float> all(elements, static_cast<float>(1 + inner.rank()));
    std::vector<float> part(counts[static_cast<std::size_t>(inner.rank())], static_cast<float>(1 + inner.rank()));
    if (kind == Kind::kAllReduce) lossy.all_reduce(std::span<float>(all), ReduceOp::kSum, message);
    if (kind == Kind::kReduceScatter)
      lossy.reduce_scatter(std::span<const float>(all), std::span<float>(part), counts, ReduceOp::kSum, message);
    if (kind == Kind::kAllGather)
      lossy.all_gather(std::span<const float>(part), std::span<float>(all), counts, message);
    const std::vector<ClassStatistics> statistics = lossy.collect_statistics(LinkDetail::kOmit);
    const std::optional<VirtualTime> time = lossy.collect_time();
    if (inner.rank() != 1) return;
    outcome.values = kind == Kind::kReduceScatter ? part : all;
    outcome.digest = statistics.at(0).digest;
    outcome.seconds = time->seconds;
  });
  return outcome;
}

TEST(SizedPaths, EachSizeIsAsOnItsPathAlone) {
  const ClassNetwork sized = network_of("direct", {{kSmall, "ring"}});
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather}) {
    EXPECT_EQ(run(sized, kind, kSmall), run(network_of("ring"), kind, kSmall));
    EXPECT_EQ(run(sized, kind, kSmall + 1), run(network_of("direct"), kind, kSmall + 1));
    EXPECT_NE(run(sized, kind, kSmall), run(network_of("direct"), kind, kSmall));
    EXPECT_EQ(run(sized, kind, kLarge), run(network_of("direct"), kind, kLarge));
  }
}

TEST(SizedPaths, SimulationsFollowTheSize) {
  for (const sim::Collective collective : {sim::Collective::kAllReduce, sim::Collective::kAllGather}) {
    for (const auto& [elements, path] : {std::pair{kSmall, "tree"}, std::pair{kLarge, "halving_doubling"}}) {
      FateSimulation alone;
      alone.ranks = 8;
      alone.elements = elements;
      alone.collective = collective;
      alone.network = network_of(path);
      FateSimulation sized = alone;
      sized.network = network_of("halving_doubling", {{kSmall, "tree"}});
      EXPECT_EQ(simulate_fates(sized).statistics.digest, simulate_fates(alone).statistics.digest);
      EXPECT_EQ(simulate_time(sized, model_of()).seconds, simulate_time(alone, model_of()).seconds);
    }
  }
}

// Lossless all-gather of n parts of b bytes on a ring: n - 1 rounds of latency + b / bandwidth.
TEST(SizedPaths, TimeOfAnAllGatherOnARing) {
  FateSimulation simulation;
  simulation.ranks = 5;
  simulation.collective = sim::Collective::kAllGather;
  simulation.elements = 5000;
  simulation.network.path = "ring";
  const double part = 4.0 * 1000;
  EXPECT_NEAR(simulate_time(simulation, model_of()).seconds[0],
              4 * (kLink.latency_seconds + part / kLink.bytes_per_second), 1e-12);
  simulation.counts = {0, 0, 5000, 0, 0};  // one part goes round
  EXPECT_NEAR(simulate_time(simulation, model_of()).seconds[0],
              4 * (kLink.latency_seconds + 5 * part / kLink.bytes_per_second), 1e-12);
}

// A stride puts all links between groups of two ranks; without it, every other link is within a group.
TEST(SizedPaths, GroupsOfWorldRanksThatLieApartHaveTheirLinks) {
  FateSimulation simulation;
  simulation.ranks = 2;
  simulation.elements = 1000;
  simulation.network.path = "direct";
  TimeModel model = model_of();
  model.links.group_ranks = 2;
  model.links.within = kLink;
  model.links.between = {10 * kLink.latency_seconds, kLink.bytes_per_second};
  const double near = simulate_time(simulation, model).seconds[0];
  simulation.rank_stride = 2;
  EXPECT_NEAR(simulate_time(simulation, model).seconds[0] - near, 2 * 9 * kLink.latency_seconds, 1e-12);
}

TEST(SizedPaths, SizesOutOfOrderAndPathsThatDoNotFitAreRefused) {
  const auto refusal = [](const ClassNetwork& network) {
    try {
      validate(network);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(refusal(network_of("direct", {{10, "ring"}, {20, "tree"}})), "none");
  EXPECT_EQ(refusal(network_of("direct", {{10, "ring"}, {10, "tree"}})),
            "sized_paths/1/up_to_elements: got 10, want more than 10");
  EXPECT_EQ(refusal(network_of("direct", {{0, "ring"}})), "sized_paths/0/up_to_elements: got 0, want more than 0");
  EXPECT_THAT(refusal(network_of("direct", {{10, "hierarchical"}})), testing::HasSubstr("group_ranks: got 0"));
  ClassNetwork shared = network_of("direct", {{10, "ring"}});
  shared.consistency = Consistency::kShared;
  EXPECT_THAT(refusal(shared), testing::HasSubstr("on path ring"));
  EXPECT_THAT(refusal(network_of("direct", {{10, "rign"}})), testing::HasSubstr("halving_doubling"));
}

}  // namespace
}  // namespace droptest::comm::sized_paths_test
