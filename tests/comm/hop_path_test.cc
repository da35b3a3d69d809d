// SPDX-License-Identifier: Apache-2.0
// Paths of hops beyond the reference: no loss changes no bit, rates per link, and refused settings.
#include "comm/lossy/paths/hop_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/lossy/fill/contribution_counts.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"

namespace droptest::comm::hop_path_test {
namespace {

constexpr auto kClass = sim::TrafficClass::kTpForward;
constexpr std::chrono::milliseconds kTimeout{20000};
const Message kMessage{kClass, "tensor", 3};

std::vector<std::string_view> hop_paths() {
  std::vector<std::string_view> names;
  for (const PathEntry& entry : paths()) {
    if (entry.schedule != nullptr && entry.name != "direct") names.push_back(entry.name);
  }
  return names;
}

LossyOptions options_of(std::string_view path, std::shared_ptr<const sim::LossProcess> loss, Fill fill) {
  ClassNetwork network;
  network.path = path;
  network.group_ranks = path_entry(path).has_groups ? 2 : 0;
  network.payload_bytes = 32;
  network.reduce.loss = loss;
  network.gather.loss = loss;
  apply_fill(network, fill);
  LossyOptions options;
  options.network.seed = 5;
  options.network.of(kClass) = network;
  return options;
}

float input_of(int rank, std::size_t i) { return std::sin(static_cast<float>(i * 7 + static_cast<std::size_t>(rank))); }

// All collectives of all ranks, one after the other.
std::vector<std::vector<float>> results(int ranks, const LossyOptions& options, std::size_t count) {
  std::vector<std::vector<float>> by_rank(static_cast<std::size_t>(ranks));
  run_ranks(ranks, kTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options);
    std::vector<float>& all = by_rank[static_cast<std::size_t>(inner.rank())];
    std::vector<float> data(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = input_of(inner.rank(), i);
    std::vector<float> output(count);
    lossy.all_reduce(ConstTensor(std::span<const float>(data)), Tensor(std::span(output)), ReduceOp::kSum, kMessage);
    all.insert(all.end(), output.begin(), output.end());
    const std::vector<std::uint64_t> counts = even_counts(count, ranks);
    std::vector<float> part(counts[static_cast<std::size_t>(inner.rank())]);
    lossy.reduce_scatter(ConstTensor(std::span<const float>(data)), Tensor(std::span(part)), counts, ReduceOp::kSum,
                         kMessage);
    lossy.all_gather(ConstTensor(std::span<const float>(part)), Tensor(std::span(output)), counts, kMessage);
    all.insert(all.end(), output.begin(), output.end());
    lossy.broadcast(Tensor(std::span(data)), ranks - 1, kMessage);
    all.insert(all.end(), data.begin(), data.end());
    lossy.verify_fates();
  });
  return by_rank;
}

TEST(HopPath, LossZeroChangesNoBitAndLeavesRanksEqual) {
  for (const std::string_view path : hop_paths()) {
    for (const int ranks : {2, 3, 4, 6, 7}) {
      const auto without = results(ranks, options_of(path, nullptr, Fill::kZero), 101);
      for (const Fill fill : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability, Fill::kStale, Fill::kOwn}) {
        const auto with = results(ranks, options_of(path, std::make_shared<sim::Bernoulli>(0), fill), 101);
        EXPECT_EQ(with, without) << path;
      }
      for (const std::vector<float>& of_rank : without) {
        EXPECT_EQ(of_rank, without[0]) << path;
        for (std::size_t i = 0; i < 101; ++i) {
          double sum = 0;
          for (int r = 0; r < ranks; ++r) sum += input_of(r, i);
          ASSERT_NEAR(of_rank[i], sum, 1e-5) << path;        // float rounding of seven values below one
          ASSERT_NEAR(of_rank[101 + i], sum, 1e-5) << path;  // the sum by reduce-scatter and all-gather
          ASSERT_EQ(of_rank[202 + i], input_of(ranks - 1, i)) << path;
        }
      }
    }
  }
}

// If everything is lost, each owner has only its own contribution, and each receiver nothing.
TEST(HopPath, CertainLossLeavesEachRankItsOwn) {
  for (const std::string_view path : hop_paths()) {
    const auto all = results(4, options_of(path, std::make_shared<sim::Bernoulli>(1), Fill::kZero), 40);
    const auto schedule = path_entry(path).schedule({sim::Collective::kAllReduce, 4, 0, 2});
    const auto counts = even_counts(40, schedule->parts());
    for (int rank = 0; rank < 4; ++rank) {
      std::size_t i = 0;
      for (int part = 0; part < schedule->parts(); ++part) {
        for (std::uint64_t k = 0; k < counts[static_cast<std::size_t>(part)]; ++k, ++i) {
          EXPECT_EQ(all[static_cast<std::size_t>(rank)][i], schedule->owner(part) == rank ? input_of(rank, i) : 0)
              << path << " rank " << rank << " element " << i;
        }
      }
    }
  }
}

// Identical inputs of ones: every result of the reduce half is exact under count_rescale, whatever was lost on the way.
TEST(HopPath, RescaledSumsOfEqualContributionsAreExact) {
  for (const std::string_view path : hop_paths()) {
    for (const int ranks : {4, 7}) {
      LossyOptions options = options_of(path, std::make_shared<sim::Bernoulli>(0.3), Fill::kCountRescale);
      options.network.of(kClass)->gather.loss = nullptr;
      run_ranks(ranks, kTimeout, [&](Communicator& inner) {
        LossyCommunicator lossy(inner, options);
        std::vector<double> data(333, 1.0);
        lossy.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
        for (const double x : data) ASSERT_NEAR(x, ranks, 1e-14 * ranks) << path;
        EXPECT_GT(lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0).total().lost_packets, 0U);
      });
    }
  }
}

TEST(HopPath, RefusesWhatHasNoMeaning) {
  run_ranks(2, kTimeout, [&](Communicator& inner) {
    for (const std::string_view path : hop_paths()) {
      LossyOptions options = options_of(path, std::make_shared<sim::Bernoulli>(0.1), Fill::kZero);
      options.network.of(kClass)->consistency = Consistency::kShared;
      try {
        LossyCommunicator lossy(inner, options);
        ADD_FAILURE() << path;
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("consistency: got shared, but on path " + std::string(path)));
      }
    }
    LossyOptions options = options_of("hierarchical", nullptr, Fill::kZero);
    options.network.of(kClass)->group_ranks = 0;
    EXPECT_THROW(LossyCommunicator(inner, options), ConfigError);
    LossyCommunicator ring(inner, options_of("ring", nullptr, Fill::kZero));
    std::vector<float> data(4);
    EXPECT_THROW(ring.broadcast(Tensor(std::span(data)), 2, kMessage), ConfigError);
    EXPECT_THROW(ring.broadcast(Tensor(std::span(data)), -1, kMessage), ConfigError);
  });
}

TEST(ContributionCounts, AddsRunsWhereTheyBelong) {
  ContributionCounts counts;
  counts.start(10);
  EXPECT_EQ(counts.of({0, 10}), (std::vector<CountRun>{{10, 1}}));
  counts.add({2, 8}, std::vector<CountRun>{{3, 2}, {1, 0}, {2, 2}});
  EXPECT_EQ(counts.of({0, 10}), (std::vector<CountRun>{{2, 1}, {3, 3}, {1, 1}, {2, 3}, {2, 1}}));
  EXPECT_EQ(counts.of({3, 6}), (std::vector<CountRun>{{2, 3}, {1, 1}}));
  counts.add({5, 6}, std::vector<CountRun>{{1, 2}});
  EXPECT_EQ(counts.of({2, 8}), (std::vector<CountRun>{{6, 3}}));
  counts.add({0, 10}, std::vector<CountRun>{{10, 1}});
  EXPECT_EQ(counts.of({0, 10}), (std::vector<CountRun>{{2, 2}, {6, 4}, {2, 2}}));
  counts.start(0);
  EXPECT_TRUE(counts.of({0, 0}).empty());
}

}  // namespace
}  // namespace droptest::comm::hop_path_test
