// SPDX-License-Identifier: Apache-2.0
// The packets of a link with a clock: their indices and their times of departure.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/pattern.h"
#include "sim/loss/timed_gilbert_elliott.h"
#include "tests/comm/timed_network.h"

namespace droptest::comm::link_position_test {
namespace {

constexpr std::chrono::milliseconds kTimeout{20000};
constexpr auto kOther = sim::TrafficClass::kDpGradient;
constexpr std::uint64_t kElementsOfPacket = 64;

void all_reduce(Communicator& group, std::uint64_t elements, sim::TrafficClass of = kClass) {
  std::vector<float> data(elements, 1);
  group.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {of, "sum", 0});
}

void message(Communicator& group, int source, int destination, std::uint64_t elements) {
  std::vector<float> data(elements, 1);
  const Message about{kClass, "message", 0};
  if (group.rank() == source) group.send(ConstTensor(std::span<const float>(data)), destination, about);
  if (group.rank() == destination) group.recv(Tensor(std::span(data)), source, about);
}

// Packets and first losses of each link of a program with calls that other ranks do not see.
using FirstLosses = std::map<std::tuple<int, int, int>, std::pair<std::uint64_t, std::uint64_t>>;

FirstLosses first_losses(const LossyOptions& options) {
  FirstLosses all;
  run_ranks(4, kTimeout, [&](Communicator& inner) {
    LossyCommunicator world(inner, options);
    const auto pair = world.split(inner.rank() / 2, inner.rank());
    const auto across = world.split(inner.rank() % 2, inner.rank());
    for (std::uint64_t step = 0; step < 12; ++step) {
      world.begin_step(step);
      if (inner.rank() < 2) all_reduce(*pair, 900);
      if (step % 3 == 0 && inner.rank() % 2 == 1) all_reduce(*across, 300);
      message(world, 0, 3, 700);
      message(world, 3, 1, 200);
      all_reduce(world, 1500);
      if (inner.rank() >= 2) all_reduce(*pair, 500);
    }
    world.verify_fates();
    const std::vector<ClassStatistics> statistics = world.collect_statistics(LinkDetail::kInclude);
    if (inner.rank() != 0) return;
    for (const LinkStatistics& link : statistics.at(0).links) {
      all[{static_cast<int>(link.link.half), link.link.source, link.link.destination}] = {link.counts.packets,
                                                                                          link.counts.lost_packets};
    }
  });
  return all;
}

TEST(LinkPosition, FirstTransmissionsAreThoseWithoutRetransmission) {
  const auto bursts = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.2, 5));
  const auto pattern = std::make_shared<sim::Pattern>(1, 6, 2);
  for (const char* path : {"direct", "ring", "contribution", "tree"}) {
    for (const std::shared_ptr<const sim::LossProcess>& process :
         {std::shared_ptr<const sim::LossProcess>(bursts), std::shared_ptr<const sim::LossProcess>(pattern)}) {
      for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
        LossyOptions options = options_of(path, 0, model_of(1e-5));
        ClassNetwork& network = *options.network.of(kClass);
        network.reduce.loss = network.gather.loss = process;
        network.burst_scope = scope;
        const FirstLosses without = first_losses(options);
        apply_recovery(network, protocol("selective_repeat", 1));
        EXPECT_EQ(first_losses(options), without) << path << " " << process->describe();
      }
    }
  }
}

LossyOptions timed_options(const sim::TimedRates& rates) {
  LossyOptions options = options_of("direct", 0, model_of(1e-4));
  ClassNetwork& network = *options.network.of(kClass);
  network.reduce.loss = network.gather.loss = std::make_shared<sim::TimedGilbertElliott>(rates);
  return options;
}

// The sums of each of 30 steps, with and without much traffic under a stopped clock in between.
TEST(LinkPosition, WhatIsSentUnderAStoppedClockLeavesLaterLossesInTime) {
  const LossyOptions options = timed_options({300, 100, 0.25, 0, 0, 1, 0.5});
  const auto sums = [&](std::uint64_t aside) {
    std::vector<float> all;
    run_ranks(2, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      for (std::uint64_t step = 0; step < 30; ++step) {
        lossy.begin_step(step);
        std::vector<float> data(kElements, 1);
        lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, "sum", 0});
        if (inner.rank() == 0) all.insert(all.end(), data.begin(), data.end());
        const auto stop = lossy.stop_clock();
        for (std::uint64_t i = 0; i < aside; ++i) all_reduce(lossy, 4 * kElements);
      }
      lossy.verify_fates();
    });
    return all;
  };
  const std::vector<float> alone = sums(0);
  EXPECT_LT(*std::ranges::min_element(alone), *std::ranges::max_element(alone));
  EXPECT_EQ(sums(20), alone);
}

// Two messages of one packet, of two classes, right after each other: episodes are a hundred times longer.
TEST(LinkPosition, AnEpisodeHitsBothClassesOfALink) {
  LossyOptions options = timed_options({500, 500, 0.25, 0, 0, 1, 1});
  options.network.of(kOther) = options.network.of(kClass);
  options.time->compute_seconds = 5e-3;
  std::array<std::array<int, 2>, 2> seen{};
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    for (std::uint64_t step = 0; step < 400; ++step) {
      lossy.begin_step(step);
      std::array<std::vector<float>, 2> data;
      const std::array classes = {kClass, kOther};
      for (const std::size_t i : {0U, 1U}) {
        data[i].assign(kElementsOfPacket, inner.rank() == 0 ? 1.0F : 0.0F);
        lossy.broadcast(Tensor(std::span(data[i])), 0, {classes[i], "packet", 0});
      }
      if (inner.rank() == 1) ++seen[data[0][0] == 0 ? 1 : 0][data[1][0] == 0 ? 1 : 0];
    }
  });
  EXPECT_GT(seen[0][0], 100);
  EXPECT_GT(seen[1][1], 100);
  EXPECT_LT(seen[0][1] + seen[1][0], 20);
}

}  // namespace
}  // namespace droptest::comm::link_position_test
