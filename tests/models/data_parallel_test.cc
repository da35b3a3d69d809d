// SPDX-License-Identifier: Apache-2.0
// A model that replicas train together is the model that one rank trains; and sharding changes no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/parallel_layout.h"
#include "models/gpt2/gpt2.h"
#include "models/gpt2/shard_plan.h"
#include "models/ops/host_ops.h"
#include "models/training_step.h"
#include "sim/loss/bernoulli.h"
#include "tests/models/formula_model.h"
#include "tests/models/recording_communicator.h"

namespace droptest::models {
namespace {

constexpr int kLength = 9;
constexpr double kMaxNorm = 0.5;

struct Training {
  Gpt2Config config{3, 32, 4, 12, 97};
  int data = 1;
  int tensor = 1;
  int micro_batches = 1;  ///< of each data-parallel rank
  int sequences = 1;      ///< of a micro-batch
  ShardOptions sharding{};
  int steps = 5;
  bool ignores = false;  ///< targets, more on some ranks than on others
  OptimizerConfig optimizer{.epsilon = 1e-3};
  /// One replica of `data` alone, on its part of the batches.
  std::optional<int> alone{};
  /// Of the group of replicas; a started call is done at once where it is eager.
  enum class Wire { kPlain, kEager, kLosesGradients } wire = Wire::kPlain;
  UpdateRule::Norm norm = UpdateRule::Norm::kAgreed;
};

/// The loss layer of a group that loses all gradients, and puts in their place a rank's own.
std::unique_ptr<comm::LossyCommunicator> loses_gradients(comm::Communicator& group) {
  comm::LossyOptions options;
  comm::ClassNetwork& network = options.network.of(sim::TrafficClass::kDpGradient).emplace();
  for (comm::HalfNetwork* half : {&network.reduce, &network.gather}) {
    half->loss = std::make_shared<sim::Bernoulli>(1.0);
    half->fill = comm::Fill::kOwn;
  }
  return std::make_unique<comm::LossyCommunicator>(group, options);
}

struct Result {
  std::vector<StepResult> steps;
  Tensors weights;
  std::vector<Tensors> of_replica;
  std::uint64_t bytes = 0;
};

/// The losses of all steps, and the weights after them. Whatever the layout is, a step reads the same sequences.
template <class T>
Result train(const Training& run) {
  Result result;
  result.of_replica.resize(static_cast<std::size_t>(run.data));
  std::mutex mutex;
  comm::ParallelLayout layout;
  layout.data = run.alone ? 1 : run.data;
  layout.tensor = run.tensor;
  comm::run_ranks(layout.world_size(), kTestTimeout, [&](comm::Communicator& world) {
    const comm::ParallelGroups groups(layout, world);
    const std::unique_ptr<comm::Communicator> alone = world.split(world.rank(), 0);
    comm::Communicator* const shared = groups.group(comm::ParallelDimension::kTensor);
    comm::Communicator& tensor = shared == nullptr ? *alone : *shared;
    ModelRanks ranks;
    ranks.data.group = groups.group(comm::ParallelDimension::kData);
    std::unique_ptr<comm::Communicator> wire;
    if (run.wire == Training::Wire::kEager && ranks.data.group != nullptr)
      wire = std::make_unique<RecordingCommunicator>(*ranks.data.group);
    if (run.wire == Training::Wire::kLosesGradients && ranks.data.group != nullptr)
      wire = loses_gradients(*ranks.data.group);
    if (wire != nullptr) ranks.data.group = wire.get();
    ranks.data.sharding = run.sharding;
    ranks.data.sharding.micro_batches = run.micro_batches;
    ranks.all = &world;
    ranks.data_stride = run.tensor;
    Gpt2 model(run.config, make_host_ops({.type = comm::element_type_of<T>()}, tensor), run.optimizer, {}, ranks);
    set_formula_weights<T>(run.config, model.template parameters<T>(), tensor);
    model.upload_values();
    TrainingStep step(model, kMaxNorm, run.norm);
    const int data_rank = run.alone.value_or(groups.coordinates().data);
    for (int s = 0; s < run.steps; ++s) {
      std::vector<std::vector<std::int32_t>> tokens;
      std::vector<std::vector<std::int32_t>> targets;
      std::vector<MicroBatch> batches;
      for (int m = 0; m < run.micro_batches; ++m) {
        const int all = run.data * run.micro_batches * run.sequences * kLength;
        const int first = (m * run.data + data_rank) * run.sequences * kLength;
        const auto part = [&](std::uint64_t stream) {
          const std::vector<std::int32_t> whole = formula_tokens(stream, all, run.config.vocabulary);
          return std::vector<std::int32_t>(whole.begin() + first, whole.begin() + first + run.sequences * kLength);
        };
        tokens.push_back(part(2 * static_cast<std::uint64_t>(s)));
        targets.push_back(part(2 * static_cast<std::uint64_t>(s) + 1));
        for (int i = 0; run.ignores && i < static_cast<int>(targets.back().size()); ++i) {
          const int place = first + i;
          if (place % 5 == 0 || place < kLength - 1) targets.back()[static_cast<std::size_t>(i)] = kIgnoredTarget;
        }
      }
      for (std::size_t m = 0; m < tokens.size(); ++m)
        batches.push_back({tokens[m], targets[m], {run.sequences, kLength}});
      const StepResult got = step.take(batches, 0.01);
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) result.steps.push_back(got);
    }
    model.download(Gpt2::Fields::kValues);
    const std::lock_guard lock(mutex);
    add_to_whole<T>(run.config, model.template parameters<T>(), tensor, &Parameter<T>::value,
                    result.of_replica[static_cast<std::size_t>(data_rank)]);
    if (world.rank() == 0) result.bytes = model.memory_bytes();
  });
  result.weights = result.of_replica[0];
  return result;
}

template <class T>
void expect_equal_to_one_rank(const Training& many, double bound) {
  Training one = many;
  one.data = 1;
  one.tensor = 1;
  one.sharding = {};
  one.sequences = many.data * many.micro_batches * many.sequences;
  one.micro_batches = 1;
  const Result want = train<T>(one);
  const Result got = train<T>(many);
  for (std::size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_NEAR(got.steps[s].loss / want.steps[s].loss, 1, bound) << "step " << s;
    EXPECT_NEAR(got.steps[s].gradient_norm / want.steps[s].gradient_norm, 1, 10 * bound) << "step " << s;
    EXPECT_GT(want.steps[s].gradient_norm, kMaxNorm) << "is clipped";
  }
  for (const auto& [name, values] : want.weights) {
    for (const Tensors& replica : got.of_replica)
      EXPECT_LE(relative_difference(replica.at(name), values), bound) << name;
  }
}

struct Case {
  const char* name;
  Training run;
};
void PrintTo(const Case& item, std::ostream* out) { *out << item.name; }

// 4 chunks of parameters fit into a bucket of 2^17 bytes of doubles, so there are several of them.
ShardOptions zero(int stage, ShardOptions::Reduce reduce = ShardOptions::Reduce::kAfterLast) {
  return {.zero = stage,
          .bucket_bytes = std::uint64_t{1} << 17U,
          .first_bucket_bytes = 1,
          .gather_bucket_bytes = std::uint64_t{1} << 16U,
          .reduce = reduce};
}
constexpr auto kEach = ShardOptions::Reduce::kAfterEach;

const std::vector<Case> kCases = {
    {"data2", {.data = 2, .sharding = zero(0)}},
    {"data3_accumulates", {.data = 3, .micro_batches = 2, .sharding = zero(0)}},
    {"data2_tensor2", {.data = 2, .tensor = 2, .micro_batches = 3, .sharding = zero(0)}},
    {"data8", {.data = 8, .sharding = zero(0)}},
    {"data2_tensor4_zero1", {.data = 2, .tensor = 4, .sharding = zero(1)}},
    {"data4_tensor2_zero2", {.data = 4, .tensor = 2, .sharding = zero(2)}},
    {"data3_zero2_accumulates", {.data = 3, .micro_batches = 2, .sharding = zero(2)}},
    {"data3_zero2_each", {.data = 3, .micro_batches = 3, .sharding = zero(2, kEach)}},
    {"data4_tensor2_zero3", {.data = 4, .tensor = 2, .micro_batches = 2, .sharding = zero(3)}},
    {"data2_zero3_each", {.data = 2, .micro_batches = 2, .sharding = zero(3, kEach)}},
    {"heads25_width100_zero3", {.config = {2, 100, 25, 12, 97}, .data = 2, .tensor = 3, .sharding = zero(3)}},
    {"heads25_width100_zero1", {.config = {2, 100, 25, 12, 97}, .data = 3, .tensor = 2, .sharding = zero(1)}},
    {"ignored_targets", {.data = 2, .tensor = 2, .micro_batches = 2, .sharding = zero(2), .ignores = true}},
    {"one_block_zero3", {.config = {1, 32, 4, 12, 97}, .data = 2, .sharding = zero(3)}},
};

class DataParallelism : public testing::TestWithParam<Case> {};

TEST_P(DataParallelism, EqualsOneRankInDouble) { expect_equal_to_one_rank<double>(GetParam().run, 1e-12); }

// AdamW divides by small second moments, and hides errors of scale; SGD does neither.
TEST_P(DataParallelism, EqualsOneRankInFloatWithSgd) {
  Training run = GetParam().run;
  run.optimizer = {.rule = OptimizerConfig::Rule::kSgd};
  expect_equal_to_one_rank<float>(run, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Layouts, DataParallelism, testing::ValuesIn(kCases),
                         [](const auto& item) { return std::string(item.param.name); });

template <class T>
void expect_equal_bits(const Result& got, const Result& want, const std::string& what) {
  SCOPED_TRACE(what);
  for (std::size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_EQ(got.steps[s].loss, want.steps[s].loss) << "step " << s;
    EXPECT_EQ(got.steps[s].gradient_norm, want.steps[s].gradient_norm) << "step " << s;
  }
  for (const Tensors& replica : got.of_replica) EXPECT_EQ(replica, want.weights);
}

TEST(Zero, ShardingChangesNoBit) {
  for (const int micro_batches : {1, 2}) {
    for (const int tensor : {1, 2}) {
      Training run{.config = {3, 36, 3, 12, 97}, .data = 3, .tensor = tensor, .micro_batches = micro_batches};
      run.sharding = zero(0);
      const Result want = train<float>(run);
      for (const int stage : {1, 2, 3}) {
        run.sharding = zero(stage);
        expect_equal_bits<float>(train<float>(run), want, "zero " + std::to_string(stage));
      }
    }
  }
}

TEST(Zero, BucketsChangeNoBit) {
  Training run{.data = 2};
  const Result want = train<float>(run);
  for (const std::uint64_t bytes : {1U, 40000U, 100000000U}) {
    for (const int stage : {0, 1, 3}) {
      run.sharding = {.zero = stage, .bucket_bytes = bytes, .first_bucket_bytes = bytes, .gather_bucket_bytes = bytes};
      expect_equal_bits<float>(train<float>(run), want, std::to_string(bytes));
    }
  }
}

// An eager group reduces what a bucket has when it is started, and gathers what the parameters then are.
TEST(Zero, StartsNoCollectiveBeforeItsData) {
  for (const int micro_batches : {1, 3}) {
    for (const ShardOptions& sharding : {zero(0), zero(1), zero(2), zero(2, kEach), zero(3), zero(3, kEach)}) {
      Training run{.data = 3, .micro_batches = micro_batches, .sharding = sharding};
      const Result want = train<float>(run);
      run.wire = Training::Wire::kEager;
      expect_equal_bits<float>(train<float>(run), want, "zero " + std::to_string(sharding.zero));
    }
  }
}

// Two ranks' means are exact, so that a rank's own gradient in place of both is its own, bit for bit.
TEST(Replicas, ThatLoseAllGradientsAndKeepTheirOwnTrainAlone) {
  for (const int micro_batches : {1, 2}) {
    for (const int tensor : {1, 2}) {
      Training run{.data = 2, .tensor = tensor, .micro_batches = micro_batches, .sharding = zero(0)};
      run.norm = UpdateRule::Norm::kOwn;
      run.wire = Training::Wire::kLosesGradients;
      const Result together = train<float>(run);
      run.wire = Training::Wire::kPlain;
      for (int replica = 0; replica < run.data; ++replica) {
        run.alone = replica;
        const Result alone = train<float>(run);
        EXPECT_EQ(together.of_replica[static_cast<std::size_t>(replica)],
                  alone.of_replica[static_cast<std::size_t>(replica)])
            << "replica " << replica;
      }
      EXPECT_NE(together.of_replica[0], together.of_replica[1]);
      run.alone.reset();
    }
  }
}

// What was not lost, and what error feedback remembers of the lost contributions, is the sum of all that was wanted.
// A last step without loss or gradients of its own sends what is remembered.
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
      ParameterStore store(gpt2_tensors(config, 1, 0), *ops, {&lossy, zero(stage)});
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
    run.sharding = zero(stage);
    const Result got = train<float>(run);
    EXPECT_LT(got.bytes, before) << stage;
    before = got.bytes;
    EXPECT_EQ(got.bytes,
              Gpt2::planned_bytes(run.config, 1, 0, *host_ops_form({}, 1), {1, kLength}, {}, run.sharding, 4, 0));
  }
}

}  // namespace
}  // namespace droptest::models
