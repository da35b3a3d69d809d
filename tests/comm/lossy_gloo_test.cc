// SPDX-License-Identifier: Apache-2.0
// The loss layer over Gloo has exactly the fates of the local backend, and its results up to rounding.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/backend_registry.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/recovery/parity.h"
#include "sim/recovery/retransmission.h"
#include "tests/comm/conformance.h"
#include "tests/comm/rank_processes.h"
#include "tests/comm/started_programs.h"
#include "tests/comm/timed_programs.h"

namespace droptest::comm::lossy_gloo_test {
namespace {

constexpr int kRanks = 3;
constexpr auto kClass = sim::TrafficClass::kTpForward;
constexpr std::chrono::milliseconds kTimeout{20000};
const Message kMessage{kClass, "activation", 0};

struct RankResult {
  std::vector<float> data;
  std::uint64_t digest = 0;
  std::uint64_t lost = 0;
  std::uint64_t residual = 0;
  std::uint64_t untouched = 0;
  double nmse = 0;
  double virtual_seconds = 0;
  double bias = 0;  // bias and steps are those of the layer
  std::uint64_t steps = 0;
  std::uint64_t untouched_steps = 0;
  std::vector<std::uint64_t> gaps;
};

RankResult program(Communicator& inner, const LossyOptions& options) {
  LossyCommunicator lossy(inner, options);
  const auto group = lossy.split(inner.rank() == 1 ? 1 : 0, 0);
  RankResult result;
  std::vector<float> data(500);
  for (std::uint64_t step = 0; step < 6; ++step) {
    lossy.begin_step(step);
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i] = static_cast<float>(std::sin(static_cast<double>(i * (step + 1)) + inner.rank()));
    }
    lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
    group->all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
    lossy.broadcast(Tensor(std::span(data)), 2, kMessage);
    if (inner.rank() == 0) lossy.send(ConstTensor(std::span<const float>(data)), 1, kMessage);
    if (inner.rank() == 1) lossy.recv(Tensor(std::span(data)), 0, kMessage);
    result.data.insert(result.data.end(), data.begin(), data.end());
  }
  lossy.verify_fates();
  const ClassStatistics statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0);
  result.digest = statistics.digest;
  result.lost = statistics.total().lost_packets;
  result.residual = statistics.total().residual_packets;
  result.untouched = statistics.untouched;
  result.nmse = statistics.nmse();
  if (options.time) result.virtual_seconds = lossy.collect_time()->seconds;
  EXPECT_EQ(statistics.layers.size(), 1U);
  result.bias = statistics.layers.at(0).samples.bias();
  result.steps = statistics.layers[0].steps;
  result.untouched_steps = statistics.layers[0].untouched_steps;
  result.gaps = statistics.total().gaps;
  return result;
}

void run_gloo_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  const TemporaryDirectory directory;
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ProcessGroupOptions group;
        group.rank = rank;
        group.world_size = ranks;
        group.timeout = kTimeout;
        group.rendezvous.directory = directory.path().string();
        group.rendezvous.launch_id = "lossy";
        const auto inner = backend_entry("gloo").connect(group);
        body(*inner);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

std::vector<RankResult> over_gloo(const LossyOptions& options) {
  std::vector<RankResult> results(kRanks);
  run_gloo_ranks(kRanks, [&](Communicator& inner) { results[inner.rank()] = program(inner, options); });
  return results;
}

// Runs the program on both backends. `tolerance` is that of results, which differ by the order of additions if a path
// leaves them to the backend.
std::vector<RankResult> expect_alike(const LossyOptions& options, double tolerance, const std::string& what) {
  std::vector<RankResult> local(kRanks);
  run_ranks(kRanks, kTimeout, [&](Communicator& inner) { local[inner.rank()] = program(inner, options); });
  const std::vector<RankResult> gloo = over_gloo(options);
  for (std::size_t r = 0; r < local.size(); ++r) {
    EXPECT_EQ(gloo[r].digest, local[r].digest) << what;
    EXPECT_EQ(gloo[r].lost, local[r].lost) << what;
    EXPECT_EQ(gloo[r].residual, local[r].residual) << what;
    EXPECT_EQ(gloo[r].untouched, local[r].untouched) << what;
    EXPECT_GT(gloo[r].lost, 0U) << what;
    EXPECT_EQ(gloo[r].virtual_seconds, local[r].virtual_seconds) << what;
    EXPECT_NEAR(gloo[r].nmse, local[r].nmse, 1e-6) << what;
    EXPECT_NEAR(gloo[r].bias, local[r].bias, 1e-6) << what;
    EXPECT_NE(local[r].bias, 0) << what;
    EXPECT_EQ(gloo[r].steps, 6U) << what;
    EXPECT_EQ(gloo[r].untouched_steps, local[r].untouched_steps) << what;
    EXPECT_EQ(gloo[r].gaps, local[r].gaps) << what;
    EXPECT_FALSE(local[r].gaps.empty()) << what;
    EXPECT_EQ(gloo[r].data.size(), local[r].data.size()) << what;
    for (std::size_t i = 0; i < local[r].data.size(); ++i) {
      if (std::abs(gloo[r].data[i] - local[r].data[i]) <= tolerance) continue;
      ADD_FAILURE() << what << " rank " << r << " element " << i << ": " << gloo[r].data[i] << ", " << local[r].data[i];
      return local;
    }
  }
  return local;
}

LossyOptions options_of(const ClassNetwork& network) {
  LossyOptions options;
  options.sample_every_steps = 2;
  options.network.seed = 31;
  options.network.of(kClass) = network;
  return options;
}

ClassNetwork network_of(std::string_view path) {
  ClassNetwork network;
  network.path = path;
  network.reduce.loss = std::make_shared<sim::Bernoulli>(0.2);
  network.gather.loss = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.1, 3));
  network.payload_bytes = 32;
  return network;
}

// Sums of at most nine values below 3, each with float rounding.
constexpr double kSumTolerance = 1e-5;

TEST(LossyGloo, HasTheFatesOfTheLocalBackendAndItsResultsToRounding) {
  for (const PathEntry& entry : paths()) {
    // A path of hops does its own arithmetic, so that not even the backend's order of additions shows.
    const bool adds_itself = entry.name != "direct" && entry.name != "contribution";
    for (const Fill fill : {Fill::kZero, Fill::kCountRescale, Fill::kStale}) {
      if (adds_itself && fill == Fill::kZero) continue;  // the others show more of a path of hops
      ClassNetwork network = network_of(entry.name);
      network.group_ranks = entry.has_groups ? 2 : 0;
      apply_fill(network, fill);
      LossyOptions options = options_of(network);
      options.time.emplace();
      options.time->links = {{1e-6, 1e9}, {5e-6, 1e8}, 2};
      options.time->compute_seconds = 1e-3;
      options.time->compute_p99_over_p50 = 1.5;
      options.time->transfer_p99_over_p50 = 3;
      const auto results = expect_alike(options, adds_itself ? 0 : kSumTolerance, std::string(entry.name));
      EXPECT_GT(results[0].virtual_seconds, 6e-3);
    }
  }
}

TEST(LossyGloo, MeansHaveTheBitsOfTheLocalBackend) {
  const Message message{kClass, "mean", 0};
  for (const PathEntry& entry : paths()) {
    ClassNetwork network = network_of(entry.name);
    network.group_ranks = entry.has_groups ? 2 : 0;
    network.gather.fill = Fill::kOwn;
    network.reduce.fill = entry.name == "direct" ? Fill::kOwn : Fill::kCountRescale;
    std::vector<std::vector<double>> local(kRanks);
    std::vector<std::vector<double>> gloo(kRanks);
    const auto mean = [&](Communicator& inner, std::vector<std::vector<double>>& results) {
      LossyCommunicator lossy(inner, options_of(network));
      std::vector<double>& data = results[static_cast<std::size_t>(inner.rank())];
      for (int i = 0; i < 20000; ++i) data.push_back(std::sin(i + 0.5 * inner.rank()));
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMean, message);
    };
    run_ranks(kRanks, kTimeout, [&](Communicator& inner) { mean(inner, local); });
    run_gloo_ranks(kRanks, [&](Communicator& inner) { mean(inner, gloo); });
    EXPECT_EQ(local, gloo) << entry.name;
  }
}

// Issue 15: all ranks sent the hops of a round before they received any, and more than is buffered.
TEST(LossyGloo, HopsOfAnySizeDoNotDeadlock) {
  for (const std::string_view path : {"ring", "tree", "halving_doubling"}) {
    SCOPED_TRACE(path);
    ClassNetwork network;
    network.path = path;
    run_gloo_ranks(4, [&](Communicator& inner) {
      LossyOptions options = options_of(network);
      options.sample_every_steps = 0;
      LossyCommunicator lossy(inner, options);
      // The ring's parts, the smallest ones, are a quarter of it.
      std::vector<float> data(kLargeMessageBytes / sizeof(float), static_cast<float>(1 + inner.rank()));
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
      EXPECT_EQ(data, std::vector<float>(data.size(), 10.0F));
    });
  }
}

TEST(LossyGloo, RecoversWhatTheLocalBackendRecovers) {
  std::vector<float> plain;
  run_ranks(kRanks, kTimeout, [&](Communicator& inner) {
    const RankResult result = program(inner, options_of(network_of("direct")));
    if (inner.rank() == 0) plain = result.data;
  });
  const auto expect_with = [&plain](const std::string& what, const std::function<void(ClassNetwork&)>& change) {
    ClassNetwork network = network_of("direct");
    change(network);
    // The Hadamard transform also adds up 32 values.
    const auto results =
        expect_alike(options_of(network), what == "hadamard" ? 10 * kSumTolerance : kSumTolerance, what);
    EXPECT_NE(results[0].data, plain) << what << " has no effect";
    if (network.reduce.recovery != nullptr) {
      EXPECT_LT(results[0].residual, results[0].lost) << what;
    }
  };
  const auto on_links = [](std::shared_ptr<const sim::LinkRecovery> recovery) {
    return [recovery](ClassNetwork& network) { network.reduce.recovery = network.gather.recovery = recovery; };
  };
  expect_with("parity", on_links(std::make_shared<sim::Parity>(sim::ParityCode{4, 1, 2})));
  expect_with("selective_repeat", on_links(std::make_shared<sim::SelectiveRepeat>(1)));
  expect_with("interleave", [](ClassNetwork& network) { network.recovery.interleave_packets = 4; });
  expect_with("hadamard", [](ClassNetwork& network) { network.recovery.hadamard_block_elems = 32; });
  expect_with("error_feedback",
              [](ClassNetwork& network) { network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn; });
  expect_with("protect", [](ClassNetwork& network) { network.recovery.protect.steps = {2, 4}; });
  expect_with("largest_norm", [](ClassNetwork& network) { network.reduce.selection = LossSelection::kLargestNorm; });
}

TEST(GlooStartedWork, AWaitNeedsOnlyThatThePeersHaveStarted) {
  std::atomic<int> waits = 0;
  run_gloo_ranks(2, [&](Communicator& communicator) { check_waits_need_starts_alone(communicator, waits); });
}

TEST(GlooStartedWork, ABlockingCallComesAfterTheWorksUnderWay) {
  run_gloo_ranks(2, [](Communicator& communicator) {
    std::vector<float> started(200000, 1);  // long enough to be under way when the next one is called
    std::vector<float> blocking(3, 2);
    const Tensor data{std::span(started)};
    for (int i = 0; i < 20; ++i) {
      Work work = communicator.start_all_reduce(data, data, ReduceOp::kMax, kMessage);
      communicator.all_reduce(std::span(blocking), ReduceOp::kMax, {kClass, "another", 0});
      work.wait();
    }
    EXPECT_EQ(started, std::vector<float>(200000, 1));
    EXPECT_EQ(blocking, std::vector<float>(3, 2));
  });
}

TEST(GlooStartedWork, RanksMayStartTheWorksOfTwoGroupsInDifferentOrders) {
  run_gloo_ranks(2, [](Communicator& world) {
    const auto part = world.split(0, 0);
    std::vector<float> of_world(30000, 1);
    std::vector<float> of_part(30000, 2);
    const auto start = [](Communicator& group, std::vector<float>& values) {
      const Tensor data{std::span(values)};
      return group.start_all_reduce(data, data, ReduceOp::kSum, kMessage);
    };
    const bool world_first = world.rank() == 0;
    Work first = world_first ? start(world, of_world) : start(*part, of_part);
    Work second = world_first ? start(*part, of_part) : start(world, of_world);
    first.wait();
    second.wait();
    EXPECT_EQ(of_world, std::vector<float>(30000, 2));
    EXPECT_EQ(of_part, std::vector<float>(30000, 4));
  });
}

TEST(GlooStartedWork, AnErrorThatDropsAWorkIsWhatThePeersReport) {
  std::string seen_by_rank_0;
  run_gloo_ranks(2, [&](Communicator& world) {
    const auto part = world.split(0, 0);
    float value = 1;
    const Tensor data{std::span(&value, 1)};
    try {
      if (world.rank() == 1) {
        const Work dropped = part->start_all_reduce(data, data, ReduceOp::kSum, kMessage);
        throw std::runtime_error("the token file ends");
      }
      world.barrier(kMessage);
    } catch (const std::exception& error) {
      if (world.rank() == 0) seen_by_rank_0 = error.what();
    }
  });
  EXPECT_NE(seen_by_rank_0.find("rank 1 failed: an error unwound its program"), std::string::npos) << seen_by_rank_0;
}

TEST(GlooStartedWork, FatesThatDependOnTimeAreThoseOfTheLocalBackend) {
  constexpr std::uint64_t kPrograms = 100;  // each takes some 50 ms over connections
  for (const LossyOptions& options : {bursts_with_repetitions("ring"), episodes("ring")}) {
    std::vector<TimedOutcome> local(kRanks);
    std::vector<TimedOutcome> gloo(kRanks);
    const auto run = [&](Communicator& inner, std::vector<TimedOutcome>& outcomes) {
      outcomes[static_cast<std::size_t>(inner.rank())] =
          run_timed_programs(inner, options, Calls::kStarted, 0, kPrograms);
    };
    run_ranks(kRanks, kTimeout, [&](Communicator& inner) { run(inner, local); });
    run_gloo_ranks(kRanks, [&](Communicator& inner) { run(inner, gloo); });
    EXPECT_EQ(gloo, local);
    EXPECT_GT(local[0].lost, 0U);
  }
}

// Messages that are larger than the buffers of a connection, in both directions at once.
TEST(GlooStartedWork, LargeMessagesWhoseFatesDependOnTimePassEachOther) {
  run_gloo_ranks(2, [](Communicator& inner) {
    LossyOptions options = bursts_with_repetitions("direct");
    options.network.of(kTimedClass)->payload_bytes = 65536;
    LossyCommunicator lossy(inner, options);
    const std::vector<float> mine(std::size_t{9} << 19U, 1);  // 18 MiB
    std::vector<float> theirs(mine.size());
    const Message message{kTimedClass, "large", 0};
    Work received = lossy.start_recv(std::span(theirs), 1 - inner.rank(), message);
    Work sent = lossy.start_send(std::span<const float>(mine), 1 - inner.rank(), message);
    sent.wait();
    received.wait();
    lossy.verify_fates();
    EXPECT_EQ(theirs.back(), 1.0F);
  });
}

TEST(GlooStartedWork, ALossLayerOverItGivesTheFatesAndResultsOfBlockingCalls) {
  ClassNetwork network;
  network.path = "ring";
  network.payload_bytes = 64;
  network.reduce.loss = network.gather.loss = std::make_shared<sim::Bernoulli>(0.1);
  const LossyOptions options = options_of(network);
  run_gloo_ranks(3, [&](Communicator& inner) {
    std::vector<std::byte> bytes[2];
    std::uint64_t digests[2];
    for (const Calls calls : {Calls::kBlocking, Calls::kStarted}) {
      const auto mode = static_cast<std::size_t>(calls);
      LossyCommunicator lossy(inner, options);
      const ProgramGroups groups(lossy);
      for (std::uint64_t step = 0; step < 6; ++step) {
        lossy.begin_step(step);
        const auto output = run_started_program(groups, step + 7000, kClass, calls);
        bytes[mode].insert(bytes[mode].end(), output.begin(), output.end());
      }
      lossy.verify_fates();
      const ClassStatistics statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0);
      EXPECT_GT(statistics.total().lost_packets, 0U);
      digests[mode] = statistics.digest;
    }
    EXPECT_EQ(bytes[0], bytes[1]);
    EXPECT_EQ(digests[0], digests[1]);
  });
}

}  // namespace
}  // namespace droptest::comm::lossy_gloo_test
