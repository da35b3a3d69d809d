// SPDX-License-Identifier: Apache-2.0
// Recovery in collectives: error against theory, what is repaired bitwise, what is protected, what is sent again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/lossy/collective_experiment.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/recovery_rules.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/recovery/parity.h"
#include "sim/recovery/retransmission.h"

namespace droptest::comm {
namespace {

constexpr auto kClass = sim::TrafficClass::kTpForward;
constexpr std::chrono::milliseconds kTimeout{20000};
using Floats = std::vector<float>;

std::shared_ptr<const sim::LossProcess> bernoulli(double p) { return std::make_shared<sim::Bernoulli>(p); }

ClassNetwork network_of(std::string_view path, double p_reduce, double p_gather) {
  ClassNetwork network;
  network.path = path;
  network.payload_bytes = 64;
  network.reduce.loss = bernoulli(p_reduce);
  network.gather.loss = bernoulli(p_gather);
  return network;
}

LossyOptions options_of(const ClassNetwork& network) {
  LossyOptions options;
  options.network.seed = 4711;
  options.network.of(kClass) = network;
  return options;
}

/// Runs `body` on each rank with a lossy communicator and its inner one; afterwards both ends of each link agree.
ClassStatistics run_lossy(int ranks, const ClassNetwork& network,
                          const std::function<void(LossyCommunicator&, Communicator&)>& body) {
  ClassStatistics statistics;
  run_ranks(ranks, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options_of(network));
    body(lossy, inner);
    lossy.verify_fates();
    const auto collected = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
    if (inner.rank() == 0 && !collected.empty()) statistics = collected[0];
  });
  return statistics;
}

Floats values(int call, int rank, std::size_t count) {
  Floats result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = std::sin(static_cast<float>(i) * 0.7F + static_cast<float>(rank) * 1.3F + static_cast<float>(call));
  }
  return result;
}

Floats all_reduce(Communicator& group, Floats data, const Message& message = {kClass, "m", 1}) {
  group.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, message);
  return data;
}

/// Mean and mean square of the result of ranks that all put in 1, over packets, which are independent samples.
struct Moments {
  double mean = 0;
  double mean_error = 0;
  double square = 0;  // of result - N
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
          ClassNetwork network = network_of(path, p, 0);
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
          // And for independent inputs, over elements of which no two are alike.
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
      experiment.network = network_of("direct", 0.1, 0.1);
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

TEST(Recovery, ParityAndInverseProbabilityAreUnbiasedTogether) {
  ClassNetwork network = network_of("contribution", 0.4, 0);
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
  ClassNetwork network = network_of("direct", 0.3, 0.2);
  network.reduce.recovery = std::make_shared<sim::Parity>(sim::ParityCode{4, 1, 1});
  network.gather.recovery = std::make_shared<sim::SelectiveRepeat>(1);
  const ClassStatistics statistics = run_lossy(3, network, [](LossyCommunicator& lossy, Communicator& inner) {
    for (int call = 0; call < 4; ++call) all_reduce(lossy, values(call, inner.rank(), 3 * 16 * 42 - 2));
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

/// A code that repairs nearly everything leaves collectives untouched although packets are lost.
TEST(Recovery, WhatIsRepairedLeavesACollectiveUntouched) {
  ClassNetwork network = network_of("direct", 0.2, 0.2);
  network.reduce.recovery = network.gather.recovery = std::make_shared<sim::SelectiveRepeat>(std::nullopt);
  const ClassStatistics statistics = run_lossy(2, network, [](LossyCommunicator& lossy, Communicator& inner) {
    for (int call = 0; call < 5; ++call) all_reduce(lossy, values(call, inner.rank(), 2000));
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
        ClassNetwork network = network_of(path, 0.4, 0.4);
        std::shared_ptr<const sim::LinkRecovery> recovery = std::make_shared<sim::GoBackN>(std::nullopt, 8);
        if (repeats) recovery = std::make_shared<sim::SelectiveRepeat>(std::nullopt);
        network.reduce = {bernoulli(0.4), fill, recovery};
        network.gather = {bernoulli(0.4), Fill::kZero, recovery};
        run_lossy(4, network, [&](LossyCommunicator& lossy, Communicator& inner) {
          for (int call = 0; call < 3; ++call) {
            const Floats input = values(call, inner.rank(), 1003);
            const Floats want = all_reduce(inner, input, {sim::TrafficClass::kControl, "exact", -1});
            EXPECT_EQ(all_reduce(lossy, input), want) << path << " " << fill_entry(fill).name;
            Floats data = input;
            lossy.broadcast(Tensor(std::span(data)), 2, {kClass, "b", 0});
            EXPECT_EQ(data, values(call, 2, 1003));
          }
        });
      }
    }
  }
}

TEST(ErrorFeedback, WhatArrivesAddsUpToWhatWasPutIn) {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const bool scatter : {false, true}) {
      ClassNetwork network = network_of(path, 0.3, 0);
      network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
      const int ranks = 4;
      const std::size_t elems = 1000;
      const auto shortfall = [&](const ClassNetwork& of, int calls) {
        double worst = 0;
        std::mutex mutex;
        run_lossy(ranks, of, [&](LossyCommunicator& lossy, Communicator& inner) {
          std::vector<double> delivered(elems);
          for (int call = 0; call < calls; ++call) {
            const Floats input(elems, 1.0F + static_cast<float>(inner.rank()));
            Floats result(elems, 0);
            if (scatter) {
              const std::vector<std::uint64_t> counts(ranks, elems / ranks);
              lossy.reduce_scatter(ConstTensor(std::span<const float>(input)),
                                   Tensor(std::span(result).first(elems / ranks)), counts, ReduceOp::kSum,
                                   {kClass, "m", 1});
            } else {
              result = all_reduce(lossy, input);
            }
            for (std::size_t i = 0; i < elems; ++i) delivered[i] += result[i];
          }
          const std::scoped_lock lock(mutex);
          for (std::size_t i = 0; i < (scatter ? elems / ranks : elems); ++i) {
            worst = std::max(worst, std::abs(10.0 * calls - delivered[i]));
          }
        });
        return worst;
      };
      // What the memories hold is a few messages at most, however long it goes on: P(9 losses in a row) x 4000 < 0.1.
      const double soon = shortfall(network, 50);
      const double late = shortfall(network, 200);
      EXPECT_GT(soon, 0.5) << path << ": something is on its way";
      EXPECT_LT(late, 80) << path << ": of 2000";
      network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOff;
      EXPECT_GT(shortfall(network, 200), 400) << "without feedback the loss is for good";
    }
  }
}

TEST(ErrorFeedback, AddsTheLastLossToTheNextMessageOfTheSameName) {
  ClassNetwork network = network_of("contribution", 1, 0);
  network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
  network.recovery.protect.names = {"through"};
  network.recovery.protect.steps = {3, 4};
  run_lossy(2, network, [](LossyCommunicator& lossy, Communicator&) {
    lossy.begin_step(1);
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F)), Floats(40, 0.0F)) << "all is lost";
    lossy.begin_step(2);
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F)), Floats(40, 0.0F));
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F), {kClass, "through", 1}), Floats(40, 2.0F)) << "another message";
    lossy.begin_step(3);
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F), {kClass, "m", 2}), Floats(40, 2.0F)) << "another layer";
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F)), Floats(40, 6.0F)) << "three calls of two ranks";
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F)), Floats(40, 2.0F)) << "and nothing is counted twice";
  });
}

/// Sum of squared errors of the elements of an all-reduce of one rank's ones, and the number of elements that are
/// wrong.
struct Damage {
  double energy = 0;
  double worst = 0;
  std::size_t wrong = 0;
};
Damage damage_of(const ClassNetwork& network, std::size_t elems) {
  Damage damage;
  run_lossy(2, network, [&](LossyCommunicator& lossy, Communicator& inner) {
    const Floats input = values(1, inner.rank(), elems);
    const Floats want = all_reduce(inner, input, {sim::TrafficClass::kControl, "exact", -1});
    const Floats got = all_reduce(lossy, input);
    if (inner.rank() != 0) return;
    for (std::size_t i = 0; i < elems; ++i) {
      const double error = std::abs(static_cast<double>(got[i]) - want[i]);
      damage.energy += error * error;
      damage.worst = std::max(damage.worst, error);
      damage.wrong += error > 1e-5 ? 1 : 0;
    }
  });
  return damage;
}

TEST(Hadamard, WithoutLossIsEqualToRoundingAndWithLossSpreadsIt) {
  for (const std::string_view path : {"direct", "contribution"}) {
    ClassNetwork network = network_of(path, 0, 0);
    network.recovery.hadamard_block_elems = 1024;
    const Damage rounding = damage_of(network, 4000);
    EXPECT_EQ(rounding.wrong, 0U);
    network.reduce.loss = bernoulli(0.1);
    const Damage spread = damage_of(network, 4000);
    network.recovery.hadamard_block_elems = 0;
    const Damage plain = damage_of(network, 4000);
    EXPECT_LT(plain.wrong, 1200U);
    EXPECT_GT(spread.wrong, 3400U) << "nearly every block has a loss";
    EXPECT_LT(spread.worst, plain.worst);
    EXPECT_GT(spread.energy, 0.5 * plain.energy);
    EXPECT_LT(spread.energy, 2 * plain.energy);
  }
}

TEST(Hadamard, HasTheErrorOfItsFillUnderEveryFill) {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const Inputs inputs : {Inputs::kIndependent, Inputs::kIdentical}) {
      for (const Fill reduce : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability}) {
        for (const Fill gather : {Fill::kZero, Fill::kOwn, Fill::kOwnScaled}) {
          CollectiveExperiment experiment;
          experiment.network = network_of(path, 0.15, 0.1);
          experiment.network.reduce.fill = reduce;
          experiment.network.gather.fill = gather;
          experiment.network.recovery.hadamard_block_elems = 128;
          experiment.network.recovery.interleave_packets = 4;
          experiment.ranks = 3;
          experiment.elements = 8192;
          experiment.trials = 24;
          experiment.inputs = inputs;
          const Estimate nmse = run_collective_experiment(experiment).nmse;
          EXPECT_NEAR(nmse.measured, *nmse.expected, 4 * nmse.standard_error + 1e-9)
              << path << " " << fill_entry(reduce).name << " " << fill_entry(gather).name;
        }
      }
    }
  }
}

TEST(Hadamard, StaleValuesAreOfTheSameTransform) {
  // The same input every time, and a message that arrived once: what is lost later is known already.
  ClassNetwork network = network_of("direct", 0.4, 0.4);
  network.reduce.fill = network.gather.fill = Fill::kStale;
  network.recovery.hadamard_block_elems = 64;
  network.recovery.protect.steps = {0, 1};
  run_lossy(3, network, [](LossyCommunicator& lossy, Communicator& inner) {
    const Floats input = values(0, inner.rank(), 500);
    const Floats want = all_reduce(inner, input, {sim::TrafficClass::kControl, "exact", -1});
    for (std::uint64_t step = 0; step < 4; ++step) {
      lossy.begin_step(step);
      const Floats got = all_reduce(lossy, input);
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << step;
    }
  });
}

TEST(Transforms, GatherCollectivesComeBack) {
  for (const std::uint64_t block : {std::uint64_t{0}, std::uint64_t{32}}) {
    for (const Fill fill : {Fill::kZero, Fill::kOwn}) {
      ClassNetwork network = network_of("direct", 0, 0);
      network.gather.fill = fill;
      network.recovery.hadamard_block_elems = block;
      network.recovery.interleave_packets = 3;
      const double tolerance = block == 0 ? 0 : 1e-6;
      run_lossy(3, network, [&](LossyCommunicator& lossy, Communicator& inner) {
        const int me = inner.rank();
        const std::vector<std::uint64_t> counts = {100, 0, 57};
        const Floats mine = values(0, me, counts[static_cast<std::size_t>(me)]);
        Floats all(157, 9.0F);
        lossy.all_gather(ConstTensor(std::span<const float>(mine)), Tensor(std::span(all)), counts, {kClass, "g", 0});
        for (std::size_t i = 0; i < 100; ++i) ASSERT_NEAR(all[i], values(0, 0, 100)[i], tolerance);
        for (std::size_t i = 0; i < 57; ++i) ASSERT_NEAR(all[100 + i], values(0, 2, 57)[i], tolerance);
        // Part d of rank s is values(s, d, 40 + d).
        Floats sent;
        const std::vector<std::uint64_t> send_counts = {40, 41, 42};
        for (int d = 0; d < 3; ++d) {
          const Floats part = values(me, d, 40 + static_cast<std::size_t>(d));
          sent.insert(sent.end(), part.begin(), part.end());
        }
        const std::size_t each = 40 + static_cast<std::size_t>(me);
        Floats got(3 * each);
        const std::vector<std::uint64_t> receive_counts(3, each);
        lossy.all_to_all(ConstTensor(std::span<const float>(sent)), send_counts, Tensor(std::span(got)), receive_counts,
                         {kClass, "a", 0});
        for (int s = 0; s < 3; ++s) {
          const Floats want = values(s, me, each);
          for (std::size_t i = 0; i < each; ++i) {
            ASSERT_NEAR(got[static_cast<std::size_t>(s) * each + i], want[i], tolerance);
          }
        }
        Floats whole = values(7, me, 90);
        if (me == 1) lossy.send(ConstTensor(std::span<const float>(whole)), 0, {kClass, "s", 0});
        if (me == 0) lossy.recv(Tensor(std::span(whole)), 1, {kClass, "s", 0});
        for (std::size_t i = 0; i < 90 && me < 2; ++i) ASSERT_NEAR(whole[i], values(7, 1, 90)[i], tolerance);
        lossy.broadcast(Tensor(std::span(whole)), 2, {kClass, "b", 0});
        for (std::size_t i = 0; i < 90; ++i) ASSERT_NEAR(whole[i], values(7, 2, 90)[i], 2 * tolerance);
        Floats part(counts[static_cast<std::size_t>(me)]);
        const Floats input = values(3, me, 157);
        lossy.reduce_scatter(ConstTensor(std::span<const float>(input)), Tensor(std::span(part)), counts,
                             ReduceOp::kSum, {kClass, "r", 0});
        Floats want(part.size());
        inner.reduce_scatter(ConstTensor(std::span<const float>(input)), Tensor(std::span(want)), counts,
                             ReduceOp::kSum, {sim::TrafficClass::kControl, "exact"});
        for (std::size_t i = 0; i < part.size(); ++i) ASSERT_NEAR(part[i], want[i], 4 * tolerance);
      });
    }
  }
}

TEST(Interleave, KeepsBitsWithoutLossAndScattersHoles) {
  ClassNetwork network = network_of("contribution", 0, 0);
  network.recovery.interleave_packets = 8;
  EXPECT_EQ(damage_of(network, 4000).energy, 0);
  network.reduce.loss = bernoulli(0.02);
  run_lossy(2, network, [&](LossyCommunicator& lossy, Communicator& inner) {
    const Floats got = all_reduce(lossy, Floats(4096, 1.0F));
    if (inner.rank() != 0) return;
    // A part of 2048 elements is 16 groups of 8 packets of 16 elements: a lost packet has every 8th element of a group.
    std::size_t holes = 0;
    for (std::size_t i = 0; i < 4096; ++i) {
      if (got[i] == 2) continue;
      ++holes;
      const std::size_t base = i / 128 * 128 + i % 8;
      for (std::size_t j = 0; j < 16; ++j) EXPECT_LT(got[base + 8 * j], 2) << i;
    }
    EXPECT_GT(holes, 0U);
    EXPECT_EQ(holes % 16, 0U);
  });
}

TEST(Protection, NamesLayersStepsAndMessages) {
  Protection protect;
  protect.layers = {0, 3};
  protect.steps = {10, 12};
  protect.names = {"h.*.attn", "wte"};
  const auto covers = [&protect](const char* name, int layer, std::uint64_t step) {
    return protect.covers({kClass, name, layer}, step);
  };
  EXPECT_TRUE(covers("x", 0, 1));
  EXPECT_TRUE(covers("x", 3, 1));
  EXPECT_FALSE(covers("x", 1, 9));
  EXPECT_TRUE(covers("x", 1, 10));
  EXPECT_TRUE(covers("x", -1, 11));
  EXPECT_FALSE(covers("x", -1, 12));
  EXPECT_TRUE(covers("h.1.attn", 1, 1));
  EXPECT_TRUE(covers("h..attn", 1, 1));
  EXPECT_FALSE(covers("h.1.attn.x", 1, 1));
  EXPECT_TRUE(covers("wte", -1, 1));
  EXPECT_FALSE(Protection().covers({kClass, "x", -1}, 0));
  EXPECT_TRUE(matches_pattern("*a*b", "xxabab"));
  EXPECT_FALSE(matches_pattern("*a*b", "xxaba"));
  EXPECT_TRUE(matches_pattern("**", ""));
  EXPECT_FALSE(matches_pattern("", "a"));
}

TEST(Protection, ProtectedMessagesArriveAndTheOthersKeepTheirFates) {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const Fill fill : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability, Fill::kStale}) {
      ClassNetwork network = network_of(path, 0.3, 0.3);
      network.reduce.fill = fill;
      std::vector<std::vector<Floats>> results(2, std::vector<Floats>(6));
      std::vector<ClassStatistics> statistics;
      for (const std::size_t run : {0U, 1U}) {
        if (run == 1) network.recovery.protect.layers = {1};
        statistics.push_back(run_lossy(3, network, [&](LossyCommunicator& lossy, Communicator& inner) {
          for (int call = 0; call < 6; ++call) {
            const Message message{kClass, "m", call % 2};
            const Floats input = values(call, inner.rank(), 999);
            const Floats got = all_reduce(lossy, input, message);
            const Floats want = all_reduce(inner, input, {sim::TrafficClass::kControl, "exact", -1});
            if (run == 1 && call % 2 == 1) {
              EXPECT_EQ(got, want) << path << " " << fill_entry(fill).name;
            }
            if (inner.rank() == 0) results[run][static_cast<std::size_t>(call)] = got;
          }
        }));
      }
      for (const std::size_t call : {0U, 2U, 4U}) EXPECT_EQ(results[0][call], results[1][call]) << path << " " << call;
      EXPECT_NE(results[0][1], results[1][1]);
      const LossCounts with = statistics[1].total();
      const LossCounts without = statistics[0].total();
      EXPECT_EQ(with.packets, without.packets) << "protected messages use up their packets";
      EXPECT_LT(with.lost_packets, without.lost_packets);
      EXPECT_NEAR(with.expected_lost, without.expected_lost / 2, 1e-9) << "and cannot be lost";
      EXPECT_LT(std::abs(with.z()), 4);
      EXPECT_GE(statistics[1].untouched, 3U);
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
  ClassNetwork network = network_of("direct", 0.1, 0.1);
  EXPECT_EQ(reason_of(network), "");
  network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
  EXPECT_EQ(reason_of(network), "");
  network.reduce.fill = Fill::kCountRescale;
  EXPECT_THAT(reason_of(network), testing::StartsWith("recovery/error_feedback: got true beside the fill "
                                                      "count_rescale of the reduce half, which makes up for"));
  network = network_of("direct", 0.1, 0.1);
  network.recovery.hadamard_block_elems = 1000;
  EXPECT_THAT(reason_of(network), testing::StartsWith("recovery/hadamard/block: got 1000, want a power of two"));
  network = network_of("direct", 1, 0.1);
  network.reduce.recovery = std::make_shared<sim::SelectiveRepeat>(std::nullopt);
  EXPECT_THAT(reason_of(network), testing::StartsWith("reduce/recovery/retransmit: got no budget of rounds on links"));
  network = network_of("direct", 0.1, 0.1);
  network.reduce.fill = Fill::kInverseProbability;
  network.reduce.recovery = std::make_shared<sim::SelectiveRepeat>(1, sim::Parity({4, 1, 1}));
  EXPECT_THAT(reason_of(network), testing::HasSubstr("no closed form, beside the fill inverse_probability"));

  // What only the call shows.
  network = network_of("direct", 0.1, 0.1);
  network.recovery.hadamard_block_elems = 64;
  EXPECT_THROW(run_ranks(2, kTimeout,
                         [&](Communicator& inner) {
                           LossyCommunicator lossy(inner, options_of(network));
                           Floats data(100);
                           lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMax, {kClass, "m", 0});
                         }),
               ConfigError);
  network = network_of("contribution", 0.1, 0.1);
  network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
  EXPECT_THROW(run_ranks(2, kTimeout,
                         [&](Communicator& inner) {
                           LossyCommunicator lossy(inner, options_of(network));
                           std::vector<std::uint64_t> data(100);
                           lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, "m", 0});
                         }),
               ConfigError);
}

}  // namespace
}  // namespace droptest::comm
