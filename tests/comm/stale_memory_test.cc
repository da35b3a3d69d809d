// SPDX-License-Identifier: Apache-2.0
// The memory of a message: messages with equal names and shapes are the same tensor in different steps.
#include "comm/lossy/fill/stale_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/run_ranks.h"
#include "tests/comm/lossy_recovery.h"

namespace droptest::comm::stale_memory_test {
namespace {

using Counts = std::vector<std::uint64_t>;

constexpr std::uint64_t kArrives = 1;  // the step in which everything arrives
constexpr std::uint64_t kLost = 2;     // and one in which nothing does
const Message kMessage{kRecoveryClass, "m", 0};

ClassNetwork stale_network(std::string_view path) {
  ClassNetwork network = recovery_network(path, 1, 1);
  network.reduce.fill = network.gather.fill = Fill::kStale;
  network.recovery.protect.steps = {kArrives, kArrives + 1};
  return network;
}

Floats exchanged(LossyCommunicator& lossy, std::uint64_t step, const std::vector<Counts>& by_source, float value) {
  lossy.begin_step(step);
  const auto me = static_cast<std::size_t>(lossy.rank());
  Counts receives;
  for (const Counts& sends : by_source) receives.push_back(sends[me]);
  const Floats input(by_source[me][0] + by_source[me][1], value);
  Floats output(receives[0] + receives[1], -1);
  lossy.all_to_all(ConstTensor(std::span(input)), by_source[me], Tensor(std::span(output)), receives, kMessage);
  return output;
}

TEST(StaleMemory, AnotherSplitOfAnAllToAllOfTheSameSizeBeginsWithZeros) {
  const std::vector<Counts> first = {{1, 3}, {2, 2}};   // rank 0 gets 1 + 2 elements, rank 1 gets 3 + 2
  const std::vector<Counts> second = {{2, 3}, {1, 2}};  // rank 0 gets 2 + 1 elements, rank 1 the same as before
  for (const std::string_view path : {"direct", "contribution", "ring"}) {
    run_lossy(2, stale_network(path), [&](LossyCommunicator& lossy, Communicator&) {
      const bool zero = lossy.rank() == 0;
      EXPECT_EQ(exchanged(lossy, kArrives, first, zero ? 5 : 7), (zero ? Floats{5, 7, 7} : Floats{5, 5, 5, 7, 7}));
      EXPECT_EQ(exchanged(lossy, kLost, second, zero ? 6 : 8), (zero ? Floats{6, 6, 0} : Floats{5, 5, 5, 8, 8}))
          << path;
      EXPECT_EQ(exchanged(lossy, kLost, first, zero ? 6 : 8), (zero ? Floats{6, 0, 0} : Floats{5, 5, 5, 8, 8}))
          << path << ": a message has one memory, which the other shape has replaced";
    });
  }
}

Floats gathered(LossyCommunicator& lossy, std::uint64_t step, const Counts& counts, float value) {
  lossy.begin_step(step);
  const Floats input(counts[static_cast<std::size_t>(lossy.rank())], value);
  Floats output(counts[0] + counts[1], -1);
  lossy.all_gather(ConstTensor(std::span(input)), Tensor(std::span(output)), counts, kMessage);
  return output;
}

TEST(StaleMemory, AnotherCutOfAnAllGatherBeginsWithZeros) {
  for (const std::string_view path : {"direct", "ring"}) {
    run_lossy(2, stale_network(path), [&](LossyCommunicator& lossy, Communicator&) {
      const bool zero = lossy.rank() == 0;
      gathered(lossy, kArrives, {1, 2}, zero ? 5 : 7);
      EXPECT_EQ(gathered(lossy, kLost, {1, 2}, zero ? 6 : 8), (zero ? Floats{6, 7, 7} : Floats{5, 8, 8})) << path;
      EXPECT_EQ(gathered(lossy, kLost, {2, 1}, zero ? 6 : 8), (zero ? Floats{6, 6, 0} : Floats{0, 0, 8})) << path;
    });
  }
}

// The last of four ranks owns [6, 8) of 8 elements and [7, 9) of 9 elements: two in both cases.
TEST(StaleMemory, PartsOfEqualSizeAtOtherPlacesAreOtherParts) {
  ClassNetwork network = stale_network("direct");
  network.gather.loss = nullptr;
  run_lossy(4, network, [](LossyCommunicator& lossy, Communicator&) {
    lossy.begin_step(kArrives);
    EXPECT_EQ(all_reduce(lossy, Floats(8, 1.0F)), Floats(8, 4.0F));
    lossy.begin_step(kLost);
    EXPECT_EQ(all_reduce(lossy, Floats(8, 2.0F)), Floats(8, 5.0F)) << "the owner's 2 and three old contributions";
    EXPECT_EQ(all_reduce(lossy, Floats(9, 2.0F)), Floats(9, 2.0F)) << "the owner's alone";
  });
}

TEST(StaleMemory, ErrorFeedbackOfAnotherCutIsNotAdded) {
  for (const std::string_view path : {"direct", "contribution"}) {
    ClassNetwork network = recovery_network(path, 1, 0);
    network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
    network.recovery.protect.steps = {kArrives, kArrives + 1};
    const auto scattered = [](LossyCommunicator& lossy, std::uint64_t step, const Counts& counts) {
      lossy.begin_step(step);
      const Floats input(4, 1.0F);
      Floats output(counts[static_cast<std::size_t>(lossy.rank())], -1);
      lossy.reduce_scatter(ConstTensor(std::span(input)), Tensor(std::span(output)), counts, ReduceOp::kSum, kMessage);
      return output[0];
    };
    run_lossy(2, network, [&](LossyCommunicator& lossy, Communicator&) {
      scattered(lossy, kLost, {3, 1});
      EXPECT_EQ(scattered(lossy, kArrives, {3, 1}), (path == "direct" ? 3 : 4))
          << path << ": what was lost is added, on `direct` of one sender";
      scattered(lossy, kLost, {3, 1});
      EXPECT_EQ(scattered(lossy, kArrives, {1, 3}), 2) << path;
    });
  }
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Runs `body` on two ranks, with the network in that class.
void run_lossy_class(sim::TrafficClass of, const ClassNetwork& network,
                     const std::function<void(LossyCommunicator&)>& body) {
  LossyOptions options;
  options.network.of(of) = network;
  run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    body(lossy);
  });
}

// A loss scale that falls from 8 to 2 between the steps. The gathers of a tied embedding carry values.
TEST(StaleMemory, OfGradientsFollowsTheirScale) {
  for (const sim::TrafficClass of :
       {sim::TrafficClass::kTpBackward, sim::TrafficClass::kTpForward, sim::TrafficClass::kEmbeddingGradient}) {
    const float old = of == sim::TrafficClass::kTpBackward ? 2 : 8;
    run_lossy_class(of, stale_network("direct"), [&](LossyCommunicator& lossy) {
      const auto gathered_of_class = [&](std::uint64_t step, const Floats& values) {
        lossy.begin_step(step);
        const Counts counts{2, 2};
        Floats output(4, -1);
        lossy.all_gather(ConstTensor(std::span<const float>(values)), Tensor(std::span(output)), counts, {of, "m", 0});
        return output;
      };
      const bool zero = lossy.rank() == 0;
      gathered_of_class(kArrives, {8, kInfinity});
      lossy.rescale_memories(0.25);
      for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(gathered_of_class(kLost, {5, 6}), (zero ? Floats{5, 6, old, 0} : Floats{old, 0, 5, 6}));
        lossy.rescale_memories(1);
      }
    });
  }
}

// The undelivered part of an overflow would keep all later steps from being finite.
TEST(StaleMemory, ErrorFeedbackForgetsAnOverflow) {
  ClassNetwork network = recovery_network("contribution", 1, 0);
  network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
  network.recovery.protect.steps = {kArrives, kArrives + 1};
  run_lossy_class(sim::TrafficClass::kTpBackward, network, [](LossyCommunicator& lossy) {
    const auto reduced = [&](std::uint64_t step, Floats values) {
      lossy.begin_step(step);
      lossy.all_reduce(Tensor(std::span(values)), ReduceOp::kSum, {sim::TrafficClass::kTpBackward, "m", 0});
      return values;
    };
    reduced(kLost, {16, kInfinity});
    lossy.rescale_memories(0.5);
    EXPECT_EQ(reduced(kArrives, {1, 1}), (Floats{18, 2})) << "two ranks, each with 16 / 2 + 1, and with 1";
  });
}

TEST(TrafficClass, GradientsAreThoseOfTheBackwardPass) {
  std::string names;
  for (const sim::TrafficClass of : sim::kAllTrafficClasses) {
    if (sim::carries_gradients(of)) names += std::string(sim::traffic_class_name(of)) + " ";
  }
  EXPECT_EQ(names, "tp_backward dp_gradient pp_gradient embedding_gradient sequence_backward ");
}

}  // namespace
}  // namespace droptest::comm::stale_memory_test
