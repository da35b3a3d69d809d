// SPDX-License-Identifier: Apache-2.0
// The loss layer's statistics of single transformer blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/loss/bernoulli.h"
#include "tests/comm/observed_communicator.h"

namespace droptest::comm::layer_diagnostics_test {
namespace {

constexpr auto kClass = sim::TrafficClass::kTpForward;
constexpr std::chrono::milliseconds kTimeout{20000};

/// Loses a set share of steps' packets: all packets of a message whose first packet is in the list.
class ChosenLoss final : public sim::LossProcess {
 public:
  explicit ChosenLoss(std::vector<std::uint64_t> packets) : packets_(std::move(packets)) {}
  void draw(std::uint64_t, const sim::Link&, std::uint64_t first, sim::PacketMask& lost) const override {
    lost.resize(lost.size());
    for (const std::uint64_t packet : packets_) {
      if (packet >= first && packet < first + lost.size()) lost.set_lost(packet - first);
    }
  }
  double loss_rate() const override { return 0.1; }
  double mean_burst_packets() const override { return 1; }
  double mean_gap_packets() const override { return 9; }
  double burst_at_least(std::uint64_t) const override { return 1; }
  double lost_count_variance(std::uint64_t) const override { return 1; }
  std::string describe() const override { return "chosen"; }

 private:
  std::vector<std::uint64_t> packets_;
};

LossyOptions options_of(const std::shared_ptr<const sim::LossProcess>& loss) {
  LossyOptions options;
  options.network.seed = 9;
  options.sample_every_steps = 2;
  ClassNetwork network;
  network.path = "contribution";
  network.reduce.loss = loss;
  network.payload_bytes = 16;  // two doubles
  options.network.of(kClass) = network;
  return options;
}

TEST(LayerDiagnostics, CallsThatAreNotSampledHaveNoErrors) {
  LossyOptions options = options_of(std::make_shared<sim::Bernoulli>(0.5));
  options.sample_every_steps = 0;
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    lossy.begin_step(2);
    std::vector<double> data(64, 1.0);
    lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, "activation", 3});
    const ClassStatistics statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0);
    const SampleSums& samples = statistics.layers.at(0).samples;
    EXPECT_GT(statistics.total().lost_packets, 0U);
    for (const double measure :
         {statistics.nmse(), statistics.cosine(), statistics.divergence_max, statistics.divergence_rms, samples.nmse(),
          samples.cosine(), samples.bias(), samples.largest_divergence(), samples.divergence_rms()}) {
      EXPECT_TRUE(std::isnan(measure)) << measure;
    }
  });
}

TEST(LayerDiagnostics, AnErrorOfExactZerosIsInfinite) {
  SampleSums sums;
  sums.calls = 1;
  sums.elems = 2;
  EXPECT_EQ(sums.nmse(), 0);
  EXPECT_EQ(sums.bias(), 0);
  EXPECT_EQ(sums.cosine(), 1);
  sums.error_energy = sums.result_energy = 5;
  sums.error_sum = -3;
  EXPECT_EQ(sums.nmse(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(sums.bias(), -std::numeric_limits<double>::infinity());
}

TEST(LayerDiagnostics, BiasAndErrorAreThoseOfEachLayer) {
  // Two packets of two elements a message. Packet 0 of each link is lost: the first message, of layer 3, misses its
  // first two elements on both ranks; that of layer -1 nothing.
  const LossyOptions options = options_of(std::make_shared<ChosenLoss>(std::vector<std::uint64_t>{0}));
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    lossy.begin_step(2);
    for (const int layer : {3, -1}) {
      std::vector<double> data = {1, 2, 3, 4};
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, "activation", layer});
    }
    const auto statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
    ASSERT_EQ(statistics.size(), 1U);
    const std::vector<LayerStatistics>& layers = statistics[0].layers;
    ASSERT_EQ(layers.size(), 2U);
    EXPECT_EQ(layers[0].layer, -1);
    EXPECT_EQ(layers[0].samples.nmse(), 0);
    EXPECT_EQ(layers[0].samples.bias(), 0);
    EXPECT_EQ(layers[0].untouched_steps, 1U);
    EXPECT_EQ(layers[1].layer, 3);
    // Exact: 2, 4, 6, 8; results 0, 0, 6, 8. Errors -2 and -4: mean -1.5; mean square of the exact ones 30.
    EXPECT_EQ(layers[1].samples.calls, 1U);
    EXPECT_DOUBLE_EQ(layers[1].samples.elems, 8);
    EXPECT_DOUBLE_EQ(layers[1].samples.bias(), -1.5 / std::sqrt(30));
    EXPECT_DOUBLE_EQ(layers[1].samples.nmse(), 20.0 / 120);
    EXPECT_DOUBLE_EQ(layers[1].samples.cosine(), 100 / std::sqrt(120.0 * 100));
    EXPECT_EQ(layers[1].samples.divergence_max, 0);
    EXPECT_EQ(layers[1].untouched_steps, 0U);
    EXPECT_EQ(layers[1].untouched_share(), 0);
  });
}

TEST(LayerDiagnostics, AStepIsTouchedWhereAnyRankLostAnythingOfTheLayerWheneverOneAsks) {
  // Each step sends one message of two packets in layer 0, and one in layer 1. Steps 1 to 5: packets 4 (step - 1) + ...
  // Packet 0: step 1, layer 0. Packet 10: step 3, layer 1. Packet 13: step 4, layer 0.
  const LossyOptions options = options_of(std::make_shared<ChosenLoss>(std::vector<std::uint64_t>{0, 10, 13}));
  for (const bool ask_between : {false, true}) {
    run_ranks(3, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      const auto send_both = [&] {
        for (const int layer : {0, 1}) {
          std::vector<double> data = {1, 2, 3, 4};
          lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, "activation", layer});
          if (ask_between) lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
        }
      };
      for (std::uint64_t step = 1; step <= 5; ++step) {
        lossy.begin_step(step);
        send_both();
      }
      const auto statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
      const std::vector<LayerStatistics>& layers = statistics.at(0).layers;
      ASSERT_EQ(layers.size(), 2U);
      EXPECT_EQ(layers[0].steps, 5U);
      EXPECT_EQ(layers[0].untouched_steps, 3U);
      EXPECT_EQ(layers[1].steps, 5U);
      EXPECT_EQ(layers[1].untouched_steps, 4U);
      EXPECT_DOUBLE_EQ(layers[1].untouched_share(), 0.8);
    });
  }
}

// Each is counted only on its receiver.
TEST(LayerDiagnostics, AMessageIsTouchedWhereItsReceiverLosesAPacket) {
  // Two packets a message: the second one, in step 1, loses packet 3, and the fourth one, in step 3, packet 6.
  LossyOptions options = options_of(nullptr);
  options.network.of(kClass)->gather.loss = std::make_shared<ChosenLoss>(std::vector<std::uint64_t>{3, 6});
  run_ranks(3, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    for (std::uint64_t step = 0; step < 5; ++step) {
      lossy.begin_step(step);
      std::vector<double> data = {1, 2, 3, 4};
      const Message message{kClass, "activation", 7};
      if (inner.rank() == 0) lossy.send(std::span<const double>(data), 1, message);
      if (inner.rank() == 1) lossy.recv(std::span(data), 0, message);
    }
    const ClassStatistics all = lossy.collect_statistics(LinkDetail::kOmit).at(0);
    EXPECT_EQ(all.collectives, 5U);
    EXPECT_EQ(all.untouched, 3U);
    EXPECT_EQ(all.layers.at(0).layer, 7);
    EXPECT_EQ(all.layers.at(0).steps, 5U);
    EXPECT_EQ(all.layers.at(0).untouched_steps, 3U);
  });
}

// A rank stores its verdicts on steps until it sends them to the others: the size of that message shows its memory.
TEST(LayerDiagnostics, MemoryDoesNotGrowWithTheStepsWhereNobodyAsks) {
  constexpr std::uint64_t kSteps = 2500;
  // Two packets a step: steps 1, 1500 and 2500 lose one.
  LossyOptions options = options_of(std::make_shared<ChosenLoss>(std::vector<std::uint64_t>{0, 2998, 4998}));
  options.sample_every_steps = 0;
  run_ranks(2, kTimeout, [&](Communicator& backend) {
    std::size_t largest = 0;
    ObservedCommunicator inner(backend, [&largest](const Message& message, std::size_t input_bytes) {
      if (message.name == "loss statistics") largest = std::max(largest, input_bytes);
    });
    LossyCommunicator lossy(inner, options);
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      lossy.begin_step(step);
      std::vector<double> data = {1, 2, 3, 4};
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, "activation", 0});
    }
    const ClassStatistics all = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0);
    EXPECT_LT(largest, 20000U) << "16 bytes for each of at most 1024 steps, and some counts";
    EXPECT_GT(largest, 1024U * 16) << "rarely";
    EXPECT_EQ(all.layers.at(0).steps, kSteps);
    EXPECT_EQ(all.layers.at(0).untouched_steps, kSteps - 3);
    EXPECT_EQ(all.collectives, kSteps);
    EXPECT_EQ(all.untouched, kSteps - 3);
  });
}

// The ranks combine their verdicts at the same step, with whichever of its groups a rank begins the step.
TEST(LayerDiagnostics, StepsMayBeginWithAnyGroupOfARank) {
  constexpr std::uint64_t kSteps = 1500;
  LossyOptions options = options_of(std::make_shared<ChosenLoss>(std::vector<std::uint64_t>{0, 2998}));
  options.sample_every_steps = 0;
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    const std::unique_ptr<Communicator> part = lossy.split(0, inner.rank());
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      if (inner.rank() == 0) part->begin_step(step);
      lossy.begin_step(step);
      if (inner.rank() == 1) part->begin_step(step);
      std::vector<double> data = {1, 2, 3, 4};
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, "activation", 0});
    }
    const ClassStatistics all = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0);
    EXPECT_EQ(all.layers.at(0).steps, kSteps);
    EXPECT_EQ(all.layers.at(0).untouched_steps, kSteps - 2);
  });
}

TEST(LayerDiagnostics, TheLayersOfAClassAddUpToIt) {
  LossyOptions options = options_of(std::make_shared<sim::Bernoulli>(0.2));
  options.network.of(kClass)->path = "direct";
  options.network.of(kClass)->gather.loss = options.network.of(kClass)->reduce.loss;
  run_ranks(4, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    for (std::uint64_t step = 0; step < 6; ++step) {
      lossy.begin_step(step);
      for (int layer = -1; layer < 3; ++layer) {
        std::vector<float> data(50, 1.0F + static_cast<float>(inner.rank() + layer));
        lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, "activation", layer});
      }
    }
    const ClassStatistics all = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0);
    ASSERT_EQ(all.layers.size(), 4U);
    SampleSums sum;
    for (const LayerStatistics& layer : all.layers) {
      sum.add(layer.samples);
      EXPECT_GT(layer.samples.divergence_rms(), 0);
      EXPECT_LT(layer.samples.bias(), 0) << "zeros in place of positive values";
    }
    EXPECT_EQ(sum.calls, all.sampled_calls);
    EXPECT_EQ(sum.calls, 12U);
    EXPECT_DOUBLE_EQ(sum.nmse(), all.nmse());
    EXPECT_DOUBLE_EQ(sum.cosine(), all.cosine());
    EXPECT_EQ(sum.divergence_max, all.divergence_max);
  });
}

}  // namespace
}  // namespace droptest::comm::layer_diagnostics_test
