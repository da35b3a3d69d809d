// SPDX-License-Identifier: Apache-2.0
// Replicas train the same model as one rank, and sharding changes no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "models/gpt2/shard_plan.h"
#include "models/ops/host_ops.h"
#include "sim/loss/bernoulli.h"
#include "tests/comm/recording_communicator.h"
#include "tests/models/parallel_training.h"
#include "tests/models/planned_bytes.h"

namespace droptest::models::data_parallel_test {
namespace {

/// The loss layer of a group that loses all gradients and replaces them by a rank's own.
std::unique_ptr<comm::Communicator> loses_gradients(comm::Communicator& group) {
  comm::LossyOptions options;
  comm::ClassNetwork& network = options.network.of(sim::TrafficClass::kDpGradient).emplace();
  for (comm::HalfNetwork* half : {&network.reduce, &network.gather}) {
    half->loss = std::make_shared<sim::Bernoulli>(1.0);
    half->fill = comm::Fill::kOwn;
  }
  return std::make_unique<comm::LossyCommunicator>(group, options);
}

std::unique_ptr<comm::Communicator> eager(comm::Communicator& group) {
  return std::make_unique<comm::RecordingCommunicator>(group);
}

constexpr auto kEach = ShardOptions::Reduce::kAfterEach;

const std::vector<TrainingCase> kCases = {
    {"data2", {.data = 2, .sharding = small_buckets(0)}},
    {"data3_accumulates", {.data = 3, .micro_batches = 2, .sharding = small_buckets(0)}},
    {"data2_tensor2", {.data = 2, .tensor = 2, .micro_batches = 3, .sharding = small_buckets(0)}},
    {"data8", {.data = 8, .sharding = small_buckets(0)}},
    {"data2_tensor4_zero1", {.data = 2, .tensor = 4, .sharding = small_buckets(1)}},
    {"data4_tensor2_zero2", {.data = 4, .tensor = 2, .sharding = small_buckets(2)}},
    {"data3_zero2_accumulates", {.data = 3, .micro_batches = 2, .sharding = small_buckets(2)}},
    {"data3_zero2_each", {.data = 3, .micro_batches = 3, .sharding = small_buckets(2, kEach)}},
    {"data4_tensor2_zero3", {.data = 4, .tensor = 2, .micro_batches = 2, .sharding = small_buckets(3)}},
    {"data2_zero3_each", {.data = 2, .micro_batches = 2, .sharding = small_buckets(3, kEach)}},
    {"heads25_width100_zero3", {.config = {2, 100, 25, 12, 97}, .data = 2, .tensor = 3, .sharding = small_buckets(3)}},
    {"heads25_width100_zero1", {.config = {2, 100, 25, 12, 97}, .data = 3, .tensor = 2, .sharding = small_buckets(1)}},
    {"ignored_targets", {.data = 2, .tensor = 2, .micro_batches = 2, .sharding = small_buckets(2), .ignores = true}},
    {"one_block_zero3", {.config = {1, 32, 4, 12, 97}, .data = 2, .sharding = small_buckets(3)}},
};

class DataParallelism : public testing::TestWithParam<TrainingCase> {};

TEST_P(DataParallelism, EqualsOneRankInDouble) { expect_equal_to_one_rank<double>(GetParam().run, 1e-12); }

// AdamW divides by small second moments, and hides errors of scale; SGD does neither.
TEST_P(DataParallelism, EqualsOneRankInFloatWithSgd) {
  Training run = GetParam().run;
  run.optimizer = {.rule = OptimizerConfig::Rule::kSgd};
  expect_equal_to_one_rank<float>(run, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Layouts, DataParallelism, testing::ValuesIn(kCases),
                         [](const auto& item) { return std::string(item.param.name); });

TEST(Zero, ShardingChangesNoBit) {
  for (const int micro_batches : {1, 2}) {
    for (const int tensor : {1, 2}) {
      Training run{.config = {3, 36, 3, 12, 97}, .data = 3, .tensor = tensor, .micro_batches = micro_batches};
      run.sharding = small_buckets(0);
      const TrainingResult want = train<float>(run);
      for (const int stage : {1, 2, 3}) {
        run.sharding = small_buckets(stage);
        SCOPED_TRACE("zero " + std::to_string(stage));
        expect_equal_bits(train<float>(run), want);
      }
    }
  }
}

TEST(Zero, BucketsChangeNoBit) {
  Training run{.data = 2};
  const TrainingResult want = train<float>(run);
  for (const std::uint64_t bytes : {1U, 40000U, 100000000U}) {
    for (const int stage : {0, 1, 3}) {
      run.sharding = {.zero = stage, .bucket_bytes = bytes, .first_bucket_bytes = bytes, .gather_bucket_bytes = bytes};
      SCOPED_TRACE(bytes);
      expect_equal_bits(train<float>(run), want);
    }
  }
}

// An eager group reduces what a bucket has when it is started, and gathers what the parameters then are.
TEST(Zero, StartsNoCollectiveBeforeItsData) {
  for (const int micro_batches : {1, 3}) {
    for (const ShardOptions& sharding : {small_buckets(0), small_buckets(1), small_buckets(2), small_buckets(2, kEach),
                                         small_buckets(3), small_buckets(3, kEach)}) {
      Training run{.data = 3, .micro_batches = micro_batches, .sharding = sharding};
      const TrainingResult want = train<float>(run);
      run.data_wire = eager;
      SCOPED_TRACE("zero " + std::to_string(sharding.zero));
      expect_equal_bits(train<float>(run), want);
    }
  }
}

// Two ranks' means are exact, so that a rank's own gradient in place of both is its own, bit for bit.
TEST(Replicas, ThatLoseAllGradientsAndKeepTheirOwnTrainAlone) {
  for (const int micro_batches : {1, 2}) {
    for (const int tensor : {1, 2}) {
      Training run{.data = 2, .tensor = tensor, .micro_batches = micro_batches, .sharding = small_buckets(0)};
      run.norm = UpdateRule::Norm::kOwn;
      run.data_wire = loses_gradients;
      const TrainingResult together = train<float>(run);
      run.data_wire = nullptr;
      for (int replica = 0; replica < run.data; ++replica) {
        run.alone = replica;
        const TrainingResult alone = train<float>(run);
        EXPECT_EQ(together.of_replica[static_cast<std::size_t>(replica)],
                  alone.of_replica[static_cast<std::size_t>(replica)])
            << "replica " << replica;
      }
      EXPECT_NE(together.of_replica[0], together.of_replica[1]);
      run.alone.reset();
    }
  }
}

// The delivered contributions and the residuals of error feedback add up to all contributions. A last step without
// loss, and without own gradients, sends the residuals.
TEST(Replicas, ErrorFeedbackConservesTheSumOfGradients) {
  constexpr int kReplicas = 3;
  constexpr int kSteps = 6;
  const Gpt2Config config{2, 32, 4, 12, 97};
  for (const int stage : {0, 1, 2}) {
    std::vector<double> wanted;
    std::vector<double> got;
    std::uint64_t lost = 0;
    std::mutex mutex;
    comm::run_ranks(kReplicas, kTestTimeout, [&](comm::Communicator& world) {
      comm::LossyOptions options;
      comm::ClassNetwork& network = options.network.of(sim::TrafficClass::kDpGradient).emplace();
      network.reduce.loss = std::make_shared<sim::Bernoulli>(0.3);
      network.payload_bytes = 256;
      network.recovery.error_feedback = comm::ClassRecovery::ErrorFeedback::kOn;
      comm::LossyCommunicator lossy(world, options);
      const std::unique_ptr<comm::Communicator> alone = world.split(world.rank(), 0);
      const auto ops = make_host_ops({.type = comm::ElementType::kFloat64}, *alone);
      ParameterStore store(gpt2_tensors(config, 1, 0), *ops, {&lossy, small_buckets(stage)});
      const std::uint64_t elems = store.table().trained_elems;
      std::vector<double> own_sum(elems);
      std::vector<double> results(elems);
      for (int s = 0; s <= kSteps; ++s) {
        std::optional<comm::LossyCommunicator::ProtectedScope> reliable;
        if (s == kSteps) reliable.emplace(lossy);
        store.expect_gradients(0, true);
        for (int layer = config.layers - 1; layer >= kOutsideOfBlocks; --layer) {
          store.acquire(layer);
          for (std::size_t i = 0; i < store.tensors().size(); ++i) {
            if (store.tensors()[i].layer != layer) continue;
            const auto gradient = store.weight(i).gradient.as<double>();
            const std::uint64_t offset = store.table().ranges[i].offset;
            for (std::uint64_t e = 0; e < store.table().trained[i]; ++e) {
              const double value =
                  s == kSteps ? 0 : std::sin(1.0 + static_cast<double>((offset + e) * 7 + s * 3 + world.rank()));
              gradient[e] = value;
              own_sum[offset + e] += value / kReplicas;
            }
          }
          store.on_gradient_ready(layer);
          store.release(layer);
        }
        store.finish_gradients();
        for (const OwnPart& part : store.plan().own()) {
          const auto reduced = store.own_gradients(part).as<double>();
          for (std::uint64_t e = 0; e < part.count; ++e) results[part.offset + e] += reduced[e];
        }
      }
      const std::vector<comm::ClassStatistics> statistics = lossy.collect_statistics(comm::LinkDetail::kOmit);
      const std::lock_guard lock(mutex);
      wanted.resize(elems);
      got.resize(elems);
      lost = statistics.at(0).total().lost_packets;
      for (std::uint64_t e = 0; e < elems; ++e) {
        wanted[e] += own_sum[e];
        if (stage > 0 || world.rank() == 0) got[e] += results[e];
      }
    });
    double largest = 0;
    for (std::size_t e = 0; e < wanted.size(); ++e) largest = std::max(largest, std::abs(got[e] - wanted[e]));
    EXPECT_LE(largest, 1e-12) << "zero " << stage;
    EXPECT_GT(lost, 100U);
  }
}

TEST(Zero, EachStageTakesLessMemory) {
  std::uint64_t before = ~std::uint64_t{0};
  for (const int stage : {0, 1, 2, 3}) {
    Training run{.config = {8, 64, 4, 12, 97}, .data = 4, .steps = 1};
    run.sharding = small_buckets(stage);
    const TrainingResult got = train<float>(run);
    EXPECT_LT(got.bytes, before) << stage;
    before = got.bytes;
    EXPECT_EQ(got.bytes,
              planned_bytes(run.config, 1, 0, *host_ops_form({}, 1), {1, Training::kLength}, {}, run.sharding, 4, 0));
  }
}

}  // namespace
}  // namespace droptest::models::data_parallel_test
