// SPDX-License-Identifier: Apache-2.0
// Error feedback and protected messages: nothing is lost for good, and the other messages keep their fates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/protection.h"
#include "tests/comm/lossy_recovery.h"

namespace droptest::comm::error_feedback_test {
namespace {

TEST(ErrorFeedback, WhatArrivesAddsUpToWhatWasPutIn) {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const bool scatter : {false, true}) {
      ClassNetwork network = recovery_network(path, 0.3, 0);
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
                                   {kRecoveryClass, "m", 1});
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
      // The residuals are a few messages at most, after any number of calls: P(9 losses in a row) x 4000 < 0.1.
      const double soon = shortfall(network, 50);
      const double late = shortfall(network, 200);
      EXPECT_GT(soon, 0.5) << path << ": something is on its way";
      EXPECT_LT(late, 80) << path << ": of 2000";
      network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOff;
      EXPECT_GT(shortfall(network, 200), 400) << "without feedback the loss is for good";
    }
  }
}

// The residual is sent with the next message that certainly arrives, here one of zeros.
TEST(ErrorFeedback, WhatIsSentAndWhatIsRememberedAddUpToWhatWasWanted) {
  constexpr int kRanks = 3;
  constexpr std::size_t kElems = 300;
  constexpr int kCalls = 30;
  const std::vector<std::uint64_t> counts(kRanks, kElems / kRanks);
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      for (const bool scatter : {false, true}) {
        ClassNetwork network = recovery_network(path, 0.4, 0);
        network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
        run_lossy(kRanks, network, [&](LossyCommunicator& lossy, Communicator&) {
          const auto value = [](int call, int rank, std::size_t i) {
            return std::sin(static_cast<double>(i) + 3 * rank + 7 * call);
          };
          std::vector<double> input(kElems);
          std::vector<double> result(scatter ? counts[0] : kElems);
          std::vector<double> delivered(result.size());
          const auto call = [&] {
            const Message message{kRecoveryClass, "m", 1};
            const ConstTensor in{std::span<const double>(input)};
            const Tensor out{std::span(result)};
            scatter ? lossy.reduce_scatter(in, out, counts, op, message) : lossy.all_reduce(in, out, op, message);
            for (std::size_t i = 0; i < result.size(); ++i) delivered[i] += result[i];
          };
          for (int c = 0; c < kCalls; ++c) {
            for (std::size_t i = 0; i < kElems; ++i) input[i] = value(c, lossy.rank(), i);
            call();
          }
          const std::size_t begin = scatter ? counts[0] * static_cast<std::size_t>(lossy.rank()) : 0;
          const auto worst_error = [&] {
            double worst = 0;
            for (std::size_t i = 0; i < delivered.size(); ++i) {
              double wanted = 0;
              for (int c = 0; c < kCalls; ++c) {
                for (int r = 0; r < kRanks; ++r) wanted += value(c, r, begin + i);
              }
              if (op == ReduceOp::kMean) wanted /= kRanks;
              worst = std::max(worst, std::abs(delivered[i] - wanted));
            }
            return worst;
          };
          EXPECT_GT(worst_error(), 0.1) << path << ": something is remembered";
          const LossyCommunicator::ProtectedScope scope(lossy);
          std::ranges::fill(input, 0);
          call();
          EXPECT_LT(worst_error(), 1e-12) << path << (scatter ? " reduce_scatter" : " all_reduce");
        });
      }
    }
  }
}

TEST(ErrorFeedback, AddsTheLastLossToTheNextMessageOfTheSameName) {
  ClassNetwork network = recovery_network("contribution", 1, 0);
  network.recovery.error_feedback = ClassRecovery::ErrorFeedback::kOn;
  network.recovery.protect.names = {"through"};
  network.recovery.protect.steps = {3, 4};
  run_lossy(2, network, [](LossyCommunicator& lossy, Communicator&) {
    lossy.begin_step(1);
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F)), Floats(40, 0.0F)) << "all is lost";
    lossy.begin_step(2);
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F)), Floats(40, 0.0F));
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F), {kRecoveryClass, "through", 1}), Floats(40, 2.0F))
        << "another message";
    lossy.begin_step(3);
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F), {kRecoveryClass, "m", 2}), Floats(40, 2.0F)) << "another layer";
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F)), Floats(40, 6.0F)) << "three calls of two ranks";
    EXPECT_EQ(all_reduce(lossy, Floats(40, 1.0F)), Floats(40, 2.0F)) << "and nothing is counted twice";
  });
}

TEST(Protection, NamesLayersStepsAndMessages) {
  Protection protect;
  protect.layers = {0, 3};
  protect.steps = {10, 12};
  protect.names = {"h.*.attn", "wte"};
  const auto covers = [&protect](const char* name, int layer, std::uint64_t step) {
    return protect.covers({kRecoveryClass, name, layer}, step);
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
  EXPECT_FALSE(Protection().covers({kRecoveryClass, "x", -1}, 0));
  EXPECT_TRUE(matches_pattern("*a*b", "xxabab"));
  EXPECT_FALSE(matches_pattern("*a*b", "xxaba"));
  EXPECT_TRUE(matches_pattern("**", ""));
  EXPECT_FALSE(matches_pattern("", "a"));
}

TEST(Protection, ProtectedMessagesArriveAndTheOthersKeepTheirFates) {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const Fill fill : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability, Fill::kStale}) {
      ClassNetwork network = recovery_network(path, 0.3, 0.3);
      network.reduce.fill = fill;
      std::vector<std::vector<Floats>> results(2, std::vector<Floats>(6));
      std::vector<ClassStatistics> statistics;
      for (const std::size_t run : {0U, 1U}) {
        if (run == 1) network.recovery.protect.layers = {1};
        statistics.push_back(run_lossy(3, network, [&](LossyCommunicator& lossy, Communicator& inner) {
          for (int call = 0; call < 6; ++call) {
            const Message message{kRecoveryClass, "m", call % 2};
            const Floats input = recovery_values(call, inner.rank(), 999);
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

}  // namespace
}  // namespace droptest::comm::error_feedback_test
