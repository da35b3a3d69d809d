// SPDX-License-Identifier: Apache-2.0
// Recovery in collectives: errors compared with theory, bitwise repair, retransmission, refused settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "comm/lab/collective_experiment.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/recovery_rules.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/recovery/parity.h"
#include "sim/recovery/retransmission.h"
#include "tests/comm/lossy_recovery.h"

namespace droptest::comm::lossy_recovery_test {
namespace {

/// Mean and mean square of the result of ranks that all put in 1, over packets, which are independent samples.
struct Moments {
  double mean = 0;
  double mean_error = 0;
  double square = 0;  // mean square of result - N
  double square_error = 0;
  double samples = 0;
};
Moments moments_of(int ranks, const ClassNetwork& network, int calls) {
  const std::size_t elems = 16384;
  const std::size_t per_packet = network.payload_bytes / sizeof(float);
  std::vector<double> samples;
  run_lossy(ranks, network, [&](LossyCommunicator& lossy, Communicator& inner) {
    for (int call = 0; call < calls; ++call) {
      const Floats result = all_reduce(lossy, Floats(elems, 1.0F));
      if (inner.rank() != 0) continue;
      for (std::size_t i = 0; i < elems; i += per_packet) samples.push_back(result[i]);
    }
  });
  const auto n = static_cast<double>(samples.size());
  Moments m;
  double squares = 0;
  double fourths = 0;
  for (const double s : samples) {
    const double error = (s - ranks) * (s - ranks);
    m.mean += s / n;
    squares += s * s / n;
    m.square += error / n;
    fourths += error * error / n;
  }
  m.mean_error = std::sqrt(std::max(0.0, squares - m.mean * m.mean) / n);
  m.square_error = std::sqrt(std::max(0.0, fourths - m.square * m.square) / n);
  m.samples = n;
  return m;
}

TEST(Recovery, MeanAndMeanSquareOfEachFillAgreeWithTheory) {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const int ranks : {2, 4, 8}) {
      for (const double p : {0.1, 0.4}) {
        for (const Fill fill : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability}) {
          ClassNetwork network = recovery_network(path, p, 0);
          network.reduce.fill = fill;
          const std::string what = std::string(path) + " " + std::to_string(ranks) + " ranks, p " + std::to_string(p) +
                                   ", " + std::string(fill_entry(fill).name);
          const double exposed = path == "direct" ? ranks - 1 : ranks;
          double mean = ranks;
          double none_arrives = 0;  // the one way in which rescaling equal inputs is wrong, and too rare to be sampled
          if (fill == Fill::kZero) mean = ranks - exposed * p;
          if (fill == Fill::kCountRescale && path == "contribution") none_arrives = std::pow(p, ranks);
          if (fill == Fill::kCountRescale) mean = ranks * (1 - none_arrives);
          const Moments measured = moments_of(ranks, network, 3);
          const double rare = ranks * std::sqrt(none_arrives / measured.samples);
          EXPECT_NEAR(measured.mean, mean, 4 * std::max(measured.mean_error, rare) + 1e-5) << what;
          const double nmse = *expected_nmse(all_reduce_case(network, ranks, Inputs::kIdentical));
          EXPECT_NEAR(measured.square, nmse * ranks * ranks, 4 * std::max(measured.square_error, rare * ranks) + 1e-9)
              << what;
          // The same holds for independent inputs, over elements that all differ.
          CollectiveExperiment experiment;
          experiment.network = network;
          experiment.ranks = ranks;
          experiment.elements = 8192;
          experiment.trials = 8;
          const Estimate independent = run_collective_experiment(experiment).nmse;
          EXPECT_NEAR(independent.measured, *independent.expected, 4 * independent.standard_error) << what;
        }
      }
    }
  }
}

TEST(Recovery, ParityLowersTheErrorToWhatItsResidualRateGives) {
  const auto parity = std::make_shared<sim::Parity>(sim::ParityCode{4, 1, 1});
  const auto bursts = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.1, 3));
  for (const auto& loss : {bernoulli(0.1), std::shared_ptr<const sim::LossProcess>(bursts)}) {
    for (const Fill fill : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability}) {
      CollectiveExperiment experiment;
      experiment.network = recovery_network("direct", 0.1, 0.1);
      experiment.network.reduce = {loss, fill, parity};
      experiment.network.gather = {loss, Fill::kZero, parity};
      experiment.ranks = 4;
      experiment.elements = 16384;  // 64 whole blocks per part
      experiment.trials = 60;
      const CollectiveExperimentResult result = run_collective_experiment(experiment);
      ASSERT_TRUE(result.nmse.expected.has_value());
      const std::string what = loss->describe() + " " + std::string(fill_entry(fill).name);
      EXPECT_NEAR(result.nmse.measured, *result.nmse.expected, 4 * result.nmse.standard_error) << what;
      EXPECT_NEAR(*result.survival_reduce.expected, 1 - 0.75 * *parity->residual_rate(*loss), 1e-15);
      EXPECT_NEAR(result.survival_reduce.measured, *result.survival_reduce.expected,
                  4 * result.survival_reduce.standard_error)
          << what;
      EXPECT_LT(std::abs(result.statistics.total().z()), 4) << what;
    }
  }
  // (4, 1) at 10 %: 3.439 % stay missing.
  EXPECT_NEAR(*residual_rate(HalfNetwork{bernoulli(0.1), Fill::kZero, parity}), 0.03439, 1e-15);
}

// A tree sends halves of the elements, which are whole blocks of the code; a ring sends thirds, which are not.
TEST(Recovery, TheResidualRateIsThatOfTheMessagesOfThePath) {
  const auto parity = std::make_shared<sim::Parity>(sim::ParityCode{4, 1, 1});
  const auto result_of = [&parity](std::string_view path) {
    CollectiveExperiment experiment;
    experiment.network = recovery_network("direct", 0.1, 0.1);
    experiment.network.path = path;
    for (HalfNetwork* half : {&experiment.network.reduce, &experiment.network.gather}) half->recovery = parity;
    experiment.ranks = 3;
    experiment.elements = 16384;
    experiment.trials = 60;
    return run_collective_experiment(experiment);
  };
  const CollectiveExperimentResult tree = result_of("tree");
  for (const Estimate& estimate : {tree.nmse, tree.survival_reduce, tree.survival_gather}) {
    ASSERT_TRUE(estimate.expected.has_value());
    EXPECT_NEAR(estimate.measured, *estimate.expected, 4 * estimate.standard_error);
  }
  const CollectiveExperimentResult ring = result_of("ring");
  EXPECT_FALSE(ring.nmse.expected.has_value());
  EXPECT_FALSE(ring.survival_reduce.expected.has_value());
  const CollectiveExperimentResult direct = result_of("direct");
  EXPECT_FALSE(direct.nmse.expected.has_value());
  EXPECT_NEAR(direct.survival_reduce.measured, direct.survival_reduce.expected.value(),
              4 * direct.survival_reduce.standard_error);
}

TEST(Recovery, ParityAndInverseProbabilityAreUnbiasedTogether) {
  ClassNetwork network = recovery_network("contribution", 0.4, 0);
  network.reduce.fill = Fill::kInverseProbability;
  network.reduce.recovery = std::make_shared<sim::Parity>(sim::ParityCode{4, 2, 1});
  const std::size_t elems = 16384;
  std::vector<double> blocks;  // means over blocks of packets, which share losses
  run_lossy(4, network, [&](LossyCommunicator& lossy, Communicator& inner) {
    for (int call = 0; call < 6; ++call) {
      const Floats result = all_reduce(lossy, Floats(elems, 1.0F));
      if (inner.rank() != 0) continue;
      for (std::size_t i = 0; i < elems; i += 64) {
        double sum = 0;
        for (std::size_t j = 0; j < 64; ++j) sum += result[i + j] / 64;
        blocks.push_back(sum);
      }
    }
  });
  double mean = 0;
  double square = 0;
  const auto n = static_cast<double>(blocks.size());
  for (const double b : blocks) {
    mean += b / n;
    square += b * b / n;
  }
  EXPECT_LT(std::abs(mean - 4) / std::sqrt((square - mean * mean) / n), 4) << mean;
}

TEST(Recovery, CountsWhatIsRepairedMissingAndSentAgain) {
  ClassNetwork network = recovery_network("direct", 0.3, 0.2);
  network.reduce.recovery = std::make_shared<sim::Parity>(sim::ParityCode{4, 1, 1});
  network.gather.recovery = std::make_shared<sim::SelectiveRepeat>(1);
  const ClassStatistics statistics = run_lossy(3, network, [](LossyCommunicator& lossy, Communicator& inner) {
    for (int call = 0; call < 4; ++call) all_reduce(lossy, recovery_values(call, inner.rank(), 3 * 16 * 42 - 2));
  });
  // Parts of 42 packets, of which the last one is short on two ranks: 11 blocks. Six links and four calls.
  const LossCounts& reduce = statistics.halves[0];
  EXPECT_EQ(reduce.packets, 6U * 4 * (42 + 11));
  EXPECT_EQ(reduce.bytes, 4U * 2 * (3 * (42 + 11) * 64 - 8));
  EXPECT_GT(reduce.repaired_packets, 0U);
  EXPECT_GT(reduce.residual_packets, 0U);
  EXPECT_LT(reduce.repaired_packets + reduce.residual_packets, reduce.lost_packets) << "some losses are parity packets";
  EXPECT_EQ(reduce.resent_packets, 0U);
  const LossCounts& gather = statistics.halves[1];
  EXPECT_EQ(gather.packets, 6U * 4 * 42);
  EXPECT_EQ(gather.resent_packets, gather.lost_packets) << "one round sends each once more";
  EXPECT_EQ(gather.repaired_packets + gather.residual_packets, gather.lost_packets);
  EXPECT_GT(gather.residual_packets, 0U);
  EXPECT_LE(gather.residual_bytes, gather.residual_packets * 64);
  EXPECT_GT(gather.residual_bytes, gather.residual_packets * 56 - 1);
  EXPECT_GT(gather.resend_rounds, 0U);
  EXPECT_LT(std::abs(reduce.z()), 4);
  EXPECT_LT(std::abs(gather.z()), 4);
}

TEST(Recovery, WhatIsRepairedLeavesACollectiveUntouched) {
  ClassNetwork network = recovery_network("direct", 0.2, 0.2);
  network.reduce.recovery = network.gather.recovery = std::make_shared<sim::SelectiveRepeat>(std::nullopt);
  const ClassStatistics statistics = run_lossy(2, network, [](LossyCommunicator& lossy, Communicator& inner) {
    for (int call = 0; call < 5; ++call) all_reduce(lossy, recovery_values(call, inner.rank(), 2000));
  });
  EXPECT_EQ(statistics.collectives, 5U);
  EXPECT_EQ(statistics.untouched, 5U);
  EXPECT_GT(statistics.total().lost_packets, 0U);
  EXPECT_EQ(statistics.total().repaired_packets, statistics.total().lost_packets);
}

TEST(Recovery, UnlimitedRetransmissionIsBitwiseLossless) {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const Fill fill : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability, Fill::kStale}) {
      for (const bool repeats : {true, false}) {
        ClassNetwork network = recovery_network(path, 0.4, 0.4);
        std::shared_ptr<const sim::LinkRecovery> recovery = std::make_shared<sim::GoBackN>(std::nullopt, 8);
        if (repeats) recovery = std::make_shared<sim::SelectiveRepeat>(std::nullopt);
        network.reduce = {bernoulli(0.4), fill, recovery};
        network.gather = {bernoulli(0.4), Fill::kZero, recovery};
        run_lossy(4, network, [&](LossyCommunicator& lossy, Communicator& inner) {
          for (int call = 0; call < 3; ++call) {
            const Floats input = recovery_values(call, inner.rank(), 1003);
            const Floats want = all_reduce(inner, input, {sim::TrafficClass::kControl, "exact", -1});
            EXPECT_EQ(all_reduce(lossy, input), want) << path << " " << fill_entry(fill).name;
            Floats data = input;
            lossy.broadcast(Tensor(std::span(data)), 2, {kRecoveryClass, "b", 0});
            EXPECT_EQ(data, recovery_values(call, 2, 1003));
          }
        });
      }
    }
  }
}

TEST(Recovery, CombinationsWithoutAMeaningAreRefusedWithTheReason) {
  const auto reason_of = [](const ClassNetwork& network) -> std::string {
    try {
      validate(network);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  ClassNetwork network = recovery_network("direct", 0.1, 0.1);
  EXPECT_EQ(reason_of(network), "");
  network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
  EXPECT_EQ(reason_of(network), "");
  network.reduce.fill = Fill::kCountRescale;
  EXPECT_THAT(reason_of(network), testing::StartsWith("recovery/error_feedback: got true with the fill "
                                                      "count_rescale of the reduce half, which makes up for"));
  network = recovery_network("direct", 0.1, 0.1);
  network.recovery.hadamard_block_elems = 1000;
  EXPECT_THAT(reason_of(network), testing::StartsWith("recovery/hadamard/block: got 1000, want a power of two"));
  network = recovery_network("direct", 1, 0.1);
  network.reduce.recovery = std::make_shared<sim::SelectiveRepeat>(std::nullopt);
  EXPECT_THAT(reason_of(network), testing::StartsWith("reduce/recovery/retransmit: got no budget of rounds on links"));
  network = recovery_network("direct", 0.1, 0.1);
  network.reduce.fill = Fill::kInverseProbability;
  network.reduce.recovery = std::make_shared<sim::SelectiveRepeat>(1, sim::Parity({4, 1, 1}));
  EXPECT_THAT(reason_of(network), testing::HasSubstr("no closed form, with the fill inverse_probability"));

  // Errors that only a call can find.
  network = recovery_network("direct", 0.1, 0.1);
  network.recovery.hadamard_block_elems = 64;
  EXPECT_THROW(run_ranks(2, kRecoveryTimeout,
                         [&](Communicator& inner) {
                           LossyCommunicator lossy(inner, recovery_options(network));
                           Floats data(100);
                           lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMax, {kRecoveryClass, "m", 0});
                         }),
               ConfigError);
  network = recovery_network("contribution", 0.1, 0.1);
  network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
  EXPECT_THROW(run_ranks(2, kRecoveryTimeout,
                         [&](Communicator& inner) {
                           LossyCommunicator lossy(inner, recovery_options(network));
                           std::vector<std::uint64_t> data(100);
                           lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kRecoveryClass, "m", 0});
                         }),
               ConfigError);
}

}  // namespace
}  // namespace droptest::comm::lossy_recovery_test
