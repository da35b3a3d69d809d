// SPDX-License-Identifier: Apache-2.0
// Compares fates without tensors with ranks that send tensors: the digest, the losses, and the survival that sums show.
#include "comm/lab/fate_simulation.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/lab/collective_experiment.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/recovery/parity.h"

namespace droptest::comm::fate_simulation_test {
namespace {

constexpr auto kClass = sim::TrafficClass::kTpForward;
constexpr std::chrono::milliseconds kTimeout{20000};
const Message kMessage{kClass, "trial"};

FateSimulation simulation_of(const PathEntry& path, int ranks, Consistency consistency) {
  FateSimulation simulation;
  simulation.network.path = path.name;
  simulation.network.group_ranks = path.has_groups ? 3 : 0;
  simulation.network.payload_bytes = 24;
  simulation.network.consistency = consistency;
  simulation.network.reduce.loss = std::make_shared<sim::Bernoulli>(0.2);
  simulation.network.gather.loss = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.1, 3));
  simulation.ranks = ranks;
  simulation.elements = 211;
  simulation.trials = 3;
  simulation.seed = 9;
  return simulation;
}

struct Carried {
  ClassStatistics statistics;
  std::vector<double> sums;     // [trial]: sum of all ranks' results
  std::vector<double> owned;    // [trial]: sum of the results that their owners have
  std::vector<double> arrived;  // number of results that are not zero, by trial
};

// The elements that a rank is the owner of.
std::vector<bool> owned_elements(const FateSimulation& simulation, int rank) {
  const PathEntry& path = path_entry(simulation.network.path);
  if (path.schedule == nullptr) return std::vector<bool>(simulation.elements, rank == 0);  // all have the same results
  const auto schedule =
      path.schedule({sim::Collective::kAllReduce, simulation.ranks, 0, simulation.network.group_ranks});
  std::vector<bool> owned;
  int part = 0;
  for (const std::uint64_t count : even_counts(simulation.elements, schedule->parts())) {
    owned.insert(owned.end(), count, schedule->owner(part++) == rank);
  }
  return owned;
}

Carried carry(const FateSimulation& simulation) {
  LossyOptions options;
  options.network.seed = simulation.seed;
  options.network.of(kClass) = simulation.network;
  if (simulation.time != nullptr) options.time = *simulation.time;
  Carried carried;
  carried.sums.assign(simulation.trials, 0);
  carried.owned.assign(simulation.trials, 0);
  carried.arrived.assign(simulation.trials, 0);
  std::mutex mutex;
  run_ranks(simulation.ranks, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<float> result(simulation.elements);
    const std::vector<bool> owned = owned_elements(simulation, inner.rank());
    for (std::uint64_t t = 0; t < simulation.trials; ++t) {
      const std::vector<float> ones(simulation.elements, 1.0F);
      lossy.begin_step(t);
      lossy.all_reduce(ConstTensor(std::span<const float>(ones)), Tensor(std::span(result)), ReduceOp::kSum, kMessage);
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < result.size(); ++i) {  // small integers: exact
        carried.sums[t] += result[i];
        if (owned[i]) carried.owned[t] += result[i];
        if (result[i] != 0) ++carried.arrived[t];
      }
    }
    const auto statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
    if (inner.rank() == 0) carried.statistics = statistics.at(0);
  });
  return carried;
}

// If all values are ones, a result is the number of contributions that arrived. If only one half has losses, the sum
// over ranks counts the values that pass that half.
TEST(FateSimulation, HasTheDigestAndTheSurvivalOfRanksThatCarryTensors) {
  for (const PathEntry& path : paths()) {
    for (const Consistency consistency : {Consistency::kPerReceiver, Consistency::kShared}) {
      if (consistency == Consistency::kShared && !path.can_share) continue;
      for (const int ranks : {2, 5, 8}) {
        const std::string what = std::string(path.name) + " " + std::to_string(ranks);
        FateSimulation simulation = simulation_of(path, ranks, consistency);
        const SimulatedFates both = simulate_fates(simulation);
        const Carried carried = carry(simulation);
        EXPECT_EQ(both.statistics.digest, carried.statistics.digest) << what;
        EXPECT_EQ(both.statistics.collectives, carried.statistics.collectives);
        EXPECT_EQ(both.statistics.untouched, carried.statistics.untouched);
        for (std::size_t half = 0; half < 2; ++half) {
          const LossCounts& got = both.statistics.halves[half];
          const LossCounts& want = carried.statistics.halves[half];
          EXPECT_EQ(got.packets, want.packets) << what;
          EXPECT_EQ(got.messages, want.messages) << what;
          EXPECT_EQ(got.lost_packets, want.lost_packets) << what;
          EXPECT_EQ(got.lost_bytes, want.lost_bytes) << what;
          EXPECT_EQ(got.bursts, want.bursts) << what;
        }
        const double everything = static_cast<double>(simulation.elements) * ranks * ranks;
        FateSimulation half = simulation;
        half.network.gather.loss = nullptr;
        const std::vector<double> reduced = carry(half).sums;
        const SimulatedFates reduce = simulate_fates(half);
        half = simulation;
        half.network.reduce.loss = nullptr;
        const std::vector<double> gathered = carry(half).sums;
        const SimulatedFates gather = simulate_fates(half);
        for (std::size_t t = 0; t < simulation.trials; ++t) {
          EXPECT_NEAR(reduce.survival_reduce[t], reduced[t] / everything, 1e-12) << what;
          EXPECT_NEAR(gather.survival_gather[t], gathered[t] / everything, 1e-12) << what;
          // The other half draws from other links, so it changes nothing.
          EXPECT_EQ(both.survival_reduce[t], reduce.survival_reduce[t]) << what;
          EXPECT_EQ(both.survival_gather[t], gather.survival_gather[t]) << what;
          EXPECT_LT(both.survival_reduce[t], 1) << what;
        }
      }
    }
  }
}

TEST(FateSimulation, PacketsAreCountedWithoutFates) {
  for (const PathEntry& path : paths()) {
    for (const Consistency consistency : {Consistency::kPerReceiver, Consistency::kShared}) {
      if (consistency == Consistency::kShared && !path.can_share) continue;
      for (const bool is_coded : {false, true}) {
        FateSimulation simulation = simulation_of(path, 5, consistency);
        if (is_coded) simulation.network.reduce.recovery = std::make_shared<sim::Parity>(sim::ParityCode{4, 2});
        const std::uint64_t packets = simulate_fates(simulation).statistics.total().packets;
        EXPECT_EQ(first_packets(simulation) * simulation.trials, packets) << path.name;
      }
    }
  }
  FateSimulation simulation = simulation_of(path_entry("direct"), 5, Consistency::kPerReceiver);
  simulation.network.compression = {.kind = CompressionKind::kTopK, .fraction = 0.1};
  EXPECT_EQ(first_packets(simulation) * simulation.trials, simulate_fates(simulation).statistics.total().packets);
  simulation.ranks = 1;
  EXPECT_EQ(first_packets(simulation), 0U);
}

// A result has at least its owner's contribution, so results that are not zero have arrived. All results of an
// aggregation point arrive.
TEST(FateSimulation, WhatComesTooLateDoesNotSurvive) {
  TimeModel time;
  time.links = {{5e-6, 1e9}, {5e-6, 1e9}, 0};
  time.compute_seconds = 1e-5;
  time.transfer_p99_over_p50 = 3;
  time.deadline_seconds = 5.4e-6;
  for (const PathEntry& path : paths()) {
    for (const Consistency consistency : {Consistency::kPerReceiver, Consistency::kShared}) {
      if (consistency == Consistency::kShared && !path.can_share) continue;
      for (const bool lossless : {true, false}) {
        const std::string what = std::string(path.name) + (lossless ? " without loss" : " with loss");
        FateSimulation simulation = simulation_of(path, 5, consistency);
        if (lossless) simulation.network.reduce.loss = simulation.network.gather.loss = nullptr;
        if (path.name == "contribution") simulation.network.gather.loss = nullptr;
        const SimulatedFates in_time = simulate_fates(simulation);
        simulation.time = &time;
        const SimulatedFates fates = simulate_fates(simulation);
        const Carried carried = carry(simulation);
        EXPECT_EQ(fates.statistics.digest, carried.statistics.digest) << what;
        EXPECT_EQ(fates.statistics.untouched, carried.statistics.untouched) << what;
        const double everything = static_cast<double>(simulation.elements) * simulation.ranks;
        for (std::size_t t = 0; t < simulation.trials; ++t) {
          EXPECT_LT(fates.survival_reduce[t], in_time.survival_reduce[t]) << what;
          const double arrived = path.schedule == nullptr ? everything : carried.arrived[t];
          EXPECT_NEAR(fates.survival_gather[t], arrived / everything, 1e-12) << what;
          if (consistency == Consistency::kShared && path.name != "contribution") continue;  // owners give up results
          EXPECT_NEAR(fates.survival_reduce[t], carried.owned[t] / everything, 1e-12) << what;
        }
      }
    }
  }
}

TEST(FateSimulation, ThousandsOfRanksAgreeWithTheory) {
  for (const std::string_view path : {"halving_doubling", "tree", "hierarchical"}) {
    CollectiveExperiment experiment;
    experiment.network.path = path;
    experiment.network.group_ranks = 16;
    experiment.network.payload_bytes = 64;
    experiment.network.reduce.loss = std::make_shared<sim::Bernoulli>(0.001);
    experiment.network.gather.loss = std::make_shared<sim::Bernoulli>(0.001);
    experiment.ranks = 2048;
    experiment.elements = 16384;
    experiment.trials = 5;
    const CollectiveExperimentResult result = simulate_collective_experiment(experiment);
    EXPECT_TRUE(std::isnan(result.nmse.measured));
    EXPECT_TRUE(result.nmse.expected.has_value());
    // Four standard errors of five trials: Student's t, so eight.
    for (const Estimate& estimate : {result.survival_reduce, result.survival_gather}) {
      EXPECT_NEAR(estimate.measured, *estimate.expected, 8 * estimate.standard_error) << path;
      EXPECT_GT(estimate.standard_error, 0) << path;
    }
  }
}

TEST(FateSimulation, OneRankLosesNothingAndTooManyCountsAreRefused) {
  FateSimulation simulation = simulation_of(path_entry("ring"), 1, Consistency::kPerReceiver);
  const SimulatedFates alone = simulate_fates(simulation);
  EXPECT_EQ(alone.survival_reduce, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(alone.statistics.collectives, 0U);
  simulation = simulation_of(path_entry("tree"), 8192, Consistency::kPerReceiver);
  simulation.elements = 1200000;  // 600,000 pieces for each of 8192 ranks
  simulation.network.payload_bytes = 8;
  EXPECT_THROW(simulate_fates(simulation), ConfigError);
}

}  // namespace
}  // namespace droptest::comm::fate_simulation_test
