// SPDX-License-Identifier: Apache-2.0
// The guarantees of the lossy communicator to its callers, path by path.
#include "comm/lossy/lossy_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/no_loss.h"

namespace droptest::comm::lossy_communicator_test {
namespace {

constexpr std::uint64_t kSeed = 99;
constexpr auto kClass = sim::TrafficClass::kTpForward;
constexpr std::chrono::milliseconds kTimeout{20000};
const Message kMessage{kClass, "activation", 0};

template <class T>
using PerRank = std::vector<std::vector<T>>;

ClassNetwork network_of(std::string_view path, double p_reduce, double p_gather) {
  ClassNetwork network;
  network.path = path;
  network.reduce.loss = std::make_shared<sim::Bernoulli>(p_reduce);
  network.gather.loss = std::make_shared<sim::Bernoulli>(p_gather);
  network.payload_bytes = 32;
  return network;
}

LossyOptions options_of(const ClassNetwork& network) {
  LossyOptions options;
  options.network.seed = kSeed;
  options.network.of(kClass) = network;
  return options;
}

template <class T>
std::vector<T> input_of(int rank, std::uint64_t count, int call = 0) {
  std::vector<T> result(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    result[i] = static_cast<T>(std::sin(static_cast<double>(i + 1) * (rank + 1) + call) * std::pow(10, rank % 4));
  }
  return result;
}

template <class T>
PerRank<T> all_reduced(int ranks, std::uint64_t count, const LossyOptions* options, ReduceOp op = ReduceOp::kSum) {
  PerRank<T> results(static_cast<std::size_t>(ranks));
  run_ranks(ranks, kTimeout, [&](Communicator& inner) {
    std::unique_ptr<LossyCommunicator> lossy;
    if (options != nullptr) lossy = std::make_unique<LossyCommunicator>(inner, *options);
    Communicator& communicator = options != nullptr ? *lossy : inner;
    std::vector<T> data = input_of<T>(inner.rank(), count);
    communicator.all_reduce(Tensor(std::span(data)), op, kMessage);
    results[inner.rank()] = data;
  });
  return results;
}

template <class T>
void expect_same_bits(const PerRank<T>& a, const PerRank<T>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t r = 0; r < a.size(); ++r) {
    ASSERT_EQ(a[r].size(), b[r].size());
    EXPECT_EQ(std::memcmp(a[r].data(), b[r].data(), a[r].size() * sizeof(T)), 0) << what << " rank " << r;
  }
}

template <class T>
void expect_loss_free_bits() {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const FillEntry& fill : fills()) {
      for (const int ranks : {1, 2, 3, 5, 7}) {
        ClassNetwork network;
        network.path = path;
        network.payload_bytes = 32;
        apply_loss(network, std::make_shared<sim::Bernoulli>(0));
        apply_fill(network, fill.fill);
        const LossyOptions options = options_of(network);
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMean}) {
          const bool rescales = fill.fill == Fill::kCountRescale || fill.fill == Fill::kInverseProbability;
          if (rescales && op == ReduceOp::kMax) continue;
          expect_same_bits<T>(all_reduced<T>(ranks, 101, &options, op), all_reduced<T>(ranks, 101, nullptr, op),
                              std::string(path) + " " + std::string(fill.name));
        }
      }
    }
  }
}

TEST(LossyCommunicator, LossZeroGivesTheBitsOfTheBareBackend) {
  expect_loss_free_bits<float>();
  expect_loss_free_bits<double>();
}

// p = 1 on `direct`: each rank ends with only its own data in its part, and with the fill elsewhere.
TEST(LossyCommunicator, DirectAtLossOneIsDefinedForEveryFill) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kPart = 10;
  constexpr std::uint64_t kCount = kRanks * kPart;
  for (const Fill reduce : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability, Fill::kStale}) {
    for (const Fill gather : {Fill::kZero, Fill::kOwn, Fill::kStale}) {
      ClassNetwork network = network_of("direct", 1, 1);
      network.reduce.fill = reduce;
      network.gather.fill = gather;
      const LossyOptions options = options_of(network);
      const auto results = all_reduced<double>(kRanks, kCount, &options);
      for (int r = 0; r < kRanks; ++r) {
        const std::vector<double> input = input_of<double>(r, kCount);
        for (std::uint64_t i = 0; i < kCount; ++i) {
          double want = 0;
          if (static_cast<int>(i / kPart) == r) {
            want = input[i] * (reduce == Fill::kCountRescale ? kRanks : 1);
          } else if (gather == Fill::kOwn) {
            want = input[i];
          }
          ASSERT_DOUBLE_EQ(results[r][i], want) << fill_entry(reduce).name << " " << fill_entry(gather).name;
        }
      }
    }
  }
}

TEST(LossyCommunicator, ContributionAtLossOneGivesZeroForEveryFill) {
  for (const Fill reduce : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability, Fill::kStale}) {
    ClassNetwork network = network_of("contribution", 1, 0);
    network.reduce.fill = reduce;
    const LossyOptions options = options_of(network);
    for (const auto& result : all_reduced<float>(3, 50, &options)) {
      EXPECT_EQ(result, std::vector<float>(50, 0.0F)) << fill_entry(reduce).name;
    }
    if (reduce != Fill::kZero) continue;
    for (const auto& result : all_reduced<float>(3, 50, &options, ReduceOp::kMax)) {
      EXPECT_EQ(result, std::vector<float>(50, 0.0F));
    }
  }
}

TEST(LossyCommunicator, ContributionKeepsRanksEqualAndReduceLossOfDirectToo) {
  for (const Fill fill : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability, Fill::kStale}) {
    for (const std::string_view path : {"contribution", "direct"}) {
      ClassNetwork network = network_of(path, 0.3, 0);
      network.reduce.fill = fill;
      const LossyOptions options = options_of(network);
      const auto results = all_reduced<float>(5, 333, &options);
      expect_same_bits<float>(results, PerRank<float>(5, results[0]), std::string(path));
      EXPECT_NE(results, all_reduced<float>(5, 333, nullptr));
    }
  }
}

TEST(LossyCommunicator, GatherLossPerReceiverSeparatesRanksAndSharedLossDoesNot) {
  ClassNetwork network = network_of("direct", 0, 0.3);
  LossyOptions options = options_of(network);
  auto results = all_reduced<float>(4, 400, &options);
  for (int r = 1; r < 4; ++r) EXPECT_NE(results[0], results[r]);
  for (const Fill fill : {Fill::kZero, Fill::kStale}) {
    network.consistency = Consistency::kShared;
    network.gather.fill = fill;
    options = options_of(network);
    results = all_reduced<float>(4, 400, &options);
    expect_same_bits<float>(results, PerRank<float>(4, results[0]), "shared");
    EXPECT_NE(results, all_reduced<float>(4, 400, nullptr));
  }
}

TEST(LossyCommunicator, FatesDifferBetweenCallsClassesAndHalves) {
  constexpr std::uint64_t kCount = 1024;
  LossyOptions options = options_of(network_of("direct", 0.5, 0));
  options.network.of(sim::TrafficClass::kTpBackward) = network_of("direct", 0.5, 0);
  options.network.of(sim::TrafficClass::kDpGradient) = network_of("direct", 0, 0.5);
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<std::vector<float>> results;
    for (const Message& message : {kMessage, kMessage, Message{sim::TrafficClass::kTpBackward, "x"},
                                   Message{sim::TrafficClass::kDpGradient, "x"}}) {
      std::vector<float> data(kCount, 1.0F);
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, message);
      for (float& x : data) x = x == 2.0F ? 0.0F : 1.0F;  // 1 if something is missing
      for (const auto& earlier : results) {
        double both = 0;
        for (std::uint64_t i = 0; i < kCount; ++i) both += data[i] * earlier[i];
        EXPECT_LT(both, 0.4 * kCount) << "fates were used twice";  // 64 packets at one half each: expected 1/4
      }
      results.push_back(data);
    }
  });
}

TEST(LossyCommunicator, ControlBarriersAndGroupsOfOneAreUntouched) {
  LossyOptions options = options_of(network_of("contribution", 1, 1));
  run_ranks(3, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<float> data = {1, 2};
    lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {sim::TrafficClass::kControl, "loss"});
    EXPECT_EQ(data, (std::vector<float>{3, 6}));
    lossy.barrier(kMessage);
    const auto alone = lossy.split(inner.rank(), 0);
    alone->all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
    EXPECT_EQ(data, (std::vector<float>{3, 6}));
    EXPECT_TRUE(lossy.collect_statistics(LossyCommunicator::LinkDetail::kInclude).empty());
  });
}

TEST(LossyCommunicator, LosslessScopeLosesAndCountsNothing) {
  const LossyOptions options = options_of(network_of("direct", 0.5, 0.5));
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    LossyCommunicator twin(inner, options);
    const auto group = lossy.split(0, inner.rank());
    const auto twin_group = twin.split(0, inner.rank());
    std::vector<float> data(256, 1.0F);
    {
      const LossyCommunicator::LosslessScope evaluation(lossy);
      lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
      EXPECT_EQ(data, std::vector<float>(256, 2.0F));
      { const LossyCommunicator::LosslessScope nested(lossy); }
      group->all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
      EXPECT_EQ(data, std::vector<float>(256, 4.0F));
    }
    EXPECT_TRUE(lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).empty());
    // The packet indices have not moved either: the next call has the fates of a first call.
    std::vector<float> a(256, 1.0F);
    std::vector<float> b(256, 1.0F);
    lossy.all_reduce(Tensor(std::span(a)), ReduceOp::kSum, kMessage);
    twin.all_reduce(Tensor(std::span(b)), ReduceOp::kSum, kMessage);
    EXPECT_EQ(a, b);
    EXPECT_NE(a, std::vector<float>(256, 2.0F));
  });
}

// Groups {0, 1, 2, 3}, {0, 1} and {0, 2}: links of one rank in several groups use each packet index once, also those to
// every destination, which not all ranks see.
TEST(LossyCommunicator, SplitGroupsDoNotUseFatesTwice) {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const BurstScope scope : {BurstScope::kLink, BurstScope::kMessage}) {
      ClassNetwork network = network_of(path, 0.5, 0);
      network.burst_scope = scope;
      const LossyOptions options = options_of(network);
      run_ranks(4, kTimeout, [&](Communicator& inner) {
        LossyCommunicator lossy(inner, options);
        const int r = inner.rank();
        const auto halves = lossy.split(r / 2, r);   // {0, 1}, {2, 3}
        const auto strides = lossy.split(r % 2, r);  // {0, 2}, {1, 3}
        const auto again = halves->split(0, -r);     // {1, 0}, {3, 2}
        std::vector<std::vector<float>> seen;
        for (Communicator* group : {static_cast<Communicator*>(&lossy), halves.get(), strides.get(), again.get(),
                                    static_cast<Communicator*>(&lossy)}) {
          std::vector<float> data(512, r == 0 ? 1.0F : 0.0F);  // shows the fates of rank 0's contribution
          group->all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
          seen.push_back(data);
        }
        lossy.verify_fates();
        if (path == "direct" || r != 0) return;
        for (std::size_t a = 0; a < seen.size(); ++a) {
          for (std::size_t b = 0; b < a; ++b) EXPECT_NE(seen[a], seen[b]) << a << " and " << b;
        }
      });
    }
  }
}

TEST(LossyCommunicator, SplitGroupsRememberStaleValuesOfTheirOwn) {
  ClassNetwork network = network_of("contribution", 0, 0);
  network.reduce.loss = std::make_shared<sim::Bernoulli>(0.5);
  network.reduce.fill = Fill::kStale;
  const LossyOptions options = options_of(network);
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    const auto group = lossy.split(0, inner.rank());
    std::vector<float> data(512, 5.0F);
    lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
    data.assign(512, 1.0F);
    group->all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
    for (const float x : data) EXPECT_THAT(x, testing::AnyOf(0.0F, 1.0F, 2.0F));  // nothing of the parent's fives
  });
}

// A lost position shows the value of the last step in which it arrived, and zero before the first one.
TEST(LossyCommunicator, StaleShowsTheLastValueThatArrived) {
  ClassNetwork network = network_of("contribution", 0.5, 0);
  network.reduce.fill = Fill::kStale;
  const LossyOptions options = options_of(network);
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<float> before(512, 0.0F);
    std::uint64_t kept = 0;
    for (int step = 1; step <= 8; ++step) {
      for (const char* name : {"a", "b"}) {
        std::vector<float> data(512, inner.rank() == 0 ? static_cast<float>(step) : 0.0F);
        if (name[0] == 'b') data.assign(512, -1000.0F);  // another message of the same shape does not mix in
        lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kClass, name, 0});
        if (name[0] == 'b') continue;
        for (std::size_t i = 0; i < data.size(); ++i) {
          EXPECT_TRUE(data[i] == static_cast<float>(step) || data[i] == before[i]);
          if (data[i] == before[i]) ++kept;
        }
        before = data;
      }
    }
    EXPECT_NEAR(static_cast<double>(kept), 0.5 * 8 * 512, 4 * 8 * std::sqrt(8 * 64 * 0.25));  // packets of 8 elements
  });
}

TEST(LossyCommunicator, RescalingFillsAreUnbiased) {
  constexpr int kTrials = 400;
  constexpr std::uint64_t kCount = 256;
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const Fill fill : {Fill::kInverseProbability, Fill::kCountRescale}) {
      ClassNetwork network = network_of(path, 0.3, 0);
      network.reduce.fill = fill;
      const LossyOptions options = options_of(network);
      run_ranks(4, kTimeout, [&](Communicator& inner) {
        LossyCommunicator lossy(inner, options);
        double sum = 0;
        double squares = 0;
        const double exact = 1 - 2 + 4 - 8;
        for (int t = 0; t < kTrials; ++t) {
          std::vector<double> data(kCount, std::pow(-2, inner.rank()));
          lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
          double mean = 0;
          for (const double x : data) mean += x / kCount;
          sum += mean;
          squares += mean * mean;
        }
        const double mean = sum / kTrials;
        const double error = std::sqrt((squares / kTrials - mean * mean) / kTrials);
        // On contribution K = 0 has probability 0.3^4 and gives zero: the mean is exact x (1 - 0.3^4).
        const bool can_be_empty = path == "contribution" && fill == Fill::kCountRescale;
        const double want = can_be_empty ? exact * (1 - std::pow(0.3, 4)) : exact;
        EXPECT_LT(std::abs(mean - want), 4 * error) << path << " " << fill_entry(fill).name;
        EXPECT_GT(error, 0);
      });
    }
  }
}

TEST(LossyCommunicator, MaximumLeavesLostContributionsOutAndRefusesRescaling) {
  ClassNetwork network = network_of("direct", 1, 0);
  LossyOptions options = options_of(network);
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<float> data = {inner.rank() == 0 ? -3.0F : -1.0F, inner.rank() == 0 ? -1.0F : -3.0F};
    lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMax, kMessage);
    EXPECT_EQ(data, (std::vector<float>{-3, -3}));  // each owner has only its own
    std::vector<std::uint64_t> numbers(8, 7);
    lossy.all_reduce(Tensor(std::span(numbers)), ReduceOp::kSum, kMessage);
    EXPECT_EQ(numbers, std::vector<std::uint64_t>(8, 7));
  });
  for (const std::string_view path : {"direct", "contribution"}) {
    network.path = path;
    network.reduce.fill = Fill::kCountRescale;
    options = options_of(network);
    run_ranks(2, kTimeout, [&](Communicator& inner) {
      LossyCommunicator lossy(inner, options);
      std::vector<float> data(4);
      std::vector<std::uint64_t> numbers(4);
      try {
        lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kMax, kMessage);
        ADD_FAILURE() << "a maximum was rescaled";
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("activation"), testing::HasSubstr("maximum")));
      }
      EXPECT_THROW(lossy.all_reduce(Tensor(std::span(numbers)), ReduceOp::kSum, kMessage), ConfigError);
    });
  }
}

TEST(LossyCommunicator, WrongArgumentsAreRefusedBeforePacketsAreUsedUp) {
  const LossyOptions options = options_of(network_of("direct", 0.5, 0.5));
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<float> three(3);
    std::vector<float> four(4);
    const std::vector<std::uint64_t> counts = {2, 2};
    EXPECT_THROW(
        lossy.all_reduce(ConstTensor(std::span<const float>(three)), Tensor(std::span(four)), ReduceOp::kSum, kMessage),
        ConfigError);
    EXPECT_THROW(
        lossy.all_gather(ConstTensor(std::span<const float>(three)), Tensor(std::span(four)), counts, kMessage),
        ConfigError);
    EXPECT_THROW(lossy.reduce_scatter(ConstTensor(std::span<const float>(three)), Tensor(std::span(four)), counts,
                                      ReduceOp::kSum, kMessage),
                 ConfigError);
    EXPECT_TRUE(lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).empty());
  });
}

TEST(LossyNetwork, ShorthandsReachTheHalvesWhereTheyHaveAMeaning) {
  const auto loss = std::make_shared<sim::Bernoulli>(0.1);
  ClassNetwork network;
  apply_loss(network, loss);
  EXPECT_EQ(network.reduce.loss, loss);
  EXPECT_EQ(network.gather.loss, loss);
  network.path = "contribution";
  apply_loss(network, loss);
  EXPECT_EQ(network.reduce.loss, loss);
  EXPECT_EQ(network.gather.loss, nullptr);
  apply_fill(network, Fill::kOwn);
  EXPECT_EQ(network.reduce.fill, Fill::kZero);
  EXPECT_EQ(network.gather.fill, Fill::kOwn);
  apply_fill(network, Fill::kCountRescale);
  EXPECT_EQ(network.reduce.fill, Fill::kCountRescale);
  EXPECT_EQ(network.gather.fill, Fill::kZero);
  apply_fill(network, Fill::kStale);
  EXPECT_EQ(network.reduce.fill, Fill::kStale);
  EXPECT_EQ(network.gather.fill, Fill::kStale);
}

TEST(LossyNetwork, WhatHasNoMeaningIsRefusedWithTheReason) {
  const auto message_of = [](const ClassNetwork& network) -> std::string {
    try {
      validate(network);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  ClassNetwork network;
  EXPECT_EQ(message_of(network), "");
  network.reduce.fill = Fill::kOwnScaled;
  EXPECT_THAT(message_of(network), testing::AllOf(testing::HasSubstr("got own_scaled"), testing::HasSubstr("stale")));
  network.reduce.fill = Fill::kOwn;
  EXPECT_EQ(message_of(network), "") << "of means, which a call tells";
  network.path = "contribution";
  EXPECT_THAT(message_of(network), testing::AllOf(testing::HasSubstr("got own on path contribution"),
                                                  testing::HasSubstr("missing at the aggregation point"),
                                                  testing::HasSubstr("want the path direct")));
  network.path = "tree";
  EXPECT_THAT(message_of(network), testing::HasSubstr("carries the contributions of several ranks"));
  network.path = "direct";
  network.reduce.fill = Fill::kZero;
  for (const Fill fill : {Fill::kCountRescale, Fill::kInverseProbability}) {
    network.gather.fill = fill;
    EXPECT_THAT(message_of(network), testing::HasSubstr("got " + std::string(fill_entry(fill).name)));
  }
  network.gather.fill = Fill::kZero;
  network.payload_bytes = 12;
  EXPECT_THAT(message_of(network), testing::HasSubstr("got 12"));
  network.payload_bytes = 16;
  network.path = "ring_road";
  EXPECT_THAT(message_of(network), testing::HasSubstr("contribution, direct"));
  EXPECT_EQ(fill_from_name("stale"), Fill::kStale);
  EXPECT_THROW(fill_from_name("stael"), ConfigError);
}

}  // namespace
}  // namespace droptest::comm::lossy_communicator_test
