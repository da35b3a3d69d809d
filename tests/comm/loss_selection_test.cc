// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/loss_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"

namespace droptest::comm::loss_selection_test {
namespace {

constexpr auto kClass = sim::TrafficClass::kTpBackward;
constexpr std::chrono::milliseconds kTimeout{20000};

std::vector<bool> hits(const std::vector<bool>& lost, const std::vector<float>& message) {
  const sim::Packetizer packets(message.size(), sizeof(float), 8);  // two elements each
  sim::PacketMask mask(packets.packets());
  for (std::size_t i = 0; i < lost.size(); ++i) {
    if (lost[i]) mask.set_lost(i);
  }
  LargestNorm adversary;
  adversary.hit(mask, ConstTensor(std::span<const float>(message)), packets);
  std::vector<bool> result;
  for (std::uint64_t i = 0; i < mask.size(); ++i) result.push_back(mask.lost(i));
  return result;
}

TEST(LossSelection, AsManyPacketsAreHitAndThoseOfTheLargestNorm) {
  // Energies 2, 25, 25, 0 and 9 (a short packet).
  const std::vector<float> message = {1, 1, -3, 4, 5, 0, 0, 0, 3};
  EXPECT_EQ(hits({1, 0, 0, 0, 0}, message), (std::vector<bool>{0, 1, 0, 0, 0})) << "of equal norms the first";
  EXPECT_EQ(hits({0, 0, 0, 1, 1}, message), (std::vector<bool>{0, 1, 1, 0, 0}));
  EXPECT_EQ(hits({1, 1, 0, 1, 0}, message), (std::vector<bool>{0, 1, 1, 0, 1}));
  EXPECT_EQ(hits({1, 1, 1, 1, 1}, message), (std::vector<bool>{1, 1, 1, 1, 1}));
  const std::vector<float> poisoned = {9, 9, std::numeric_limits<float>::quiet_NaN(), 0, 1, 1};
  EXPECT_EQ(hits({1, 0, 0}, poisoned), (std::vector<bool>{0, 1, 0}));
  EXPECT_EQ(hits({0, 0, 0, 0, 0}, message), (std::vector<bool>(5)));
}

LossyOptions options_of(LossSelection selection, double rate) {
  LossyOptions options;
  options.network.seed = 5;
  options.sample_every_steps = 1;
  ClassNetwork network;
  network.reduce.loss = std::make_shared<sim::Bernoulli>(rate);
  network.reduce.selection = selection;
  network.payload_bytes = 16;
  options.network.of(kClass) = network;
  return options;
}

struct Outcome {
  std::vector<float> data;
  std::uint64_t lost = 0;
  double nmse = 0;
};

Outcome reduced(LossSelection selection, double rate) {
  Outcome outcome;
  run_ranks(3, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options_of(selection, rate));
    lossy.begin_step(1);
    std::vector<float> data(300);
    for (std::size_t i = 0; i < data.size(); ++i) {
      // A few packets have most of the energy.
      data[i] = std::sin(static_cast<float>(i) + static_cast<float>(inner.rank())) * (i % 40 < 4 ? 10.0F : 0.1F);
    }
    lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, "gradient", 0});
    lossy.verify_fates();
    const auto statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
    if (inner.rank() == 0) outcome = {data, statistics.at(0).total().lost_packets, statistics[0].nmse()};
  });
  return outcome;
}

TEST(LossSelection, AnAdversaryLosesAsMuchAndHurtsMore) {
  for (const double rate : {0.05, 0.2}) {
    const Outcome random = reduced(LossSelection::kByFate, rate);
    const Outcome adversary = reduced(LossSelection::kLargestNorm, rate);
    EXPECT_EQ(adversary.lost, random.lost);
    EXPECT_GT(random.lost, 0U);
    // A tenth of the packets has nearly all the energy, and the adversary loses these packets first.
    EXPECT_GT(adversary.nmse, 2 * random.nmse) << rate;
  }
  EXPECT_EQ(reduced(LossSelection::kLargestNorm, 0).data, reduced(LossSelection::kByFate, 0).data);
  EXPECT_EQ(reduced(LossSelection::kLargestNorm, 1).data, reduced(LossSelection::kByFate, 1).data);
}

TEST(LossSelection, WhoDoesNotHaveTheContentCannotKnowTheLosses) {
  ClassNetwork network = *options_of(LossSelection::kLargestNorm, 0.1).network.of(kClass);
  validate(network);
  const auto refusal = [](const ClassNetwork& of) {
    try {
      validate(of);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("(none)");
  };
  for (const std::string_view path : {"contribution", "ring"}) {
    network.path = path;
    EXPECT_THAT(refusal(network), testing::HasSubstr("got \"largest_norm\" on path " + std::string(path)));
  }
  network.path = "direct";
  network.gather.selection = LossSelection::kLargestNorm;
  EXPECT_THAT(refusal(network), testing::HasSubstr("selection of the gather half: got \"largest_norm\""));
}

}  // namespace
}  // namespace droptest::comm::loss_selection_test
