// SPDX-License-Identifier: Apache-2.0
// Steps with a loss scale, on eight ranks of any layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/parallel_layout.h"
#include "models/gpt2/gpt2_messages.h"
#include "models/ops/host_ops.h"
#include "models/training_step.h"
#include "tests/comm/observed_communicator.h"
#include "tests/models/formula_model.h"

namespace droptest::models::loss_scale_test {
namespace {

const Gpt2Config kConfig{2, 32, 8, 12, 97};
constexpr BatchShape kShape{2, 6};
constexpr double kMaxNorm = 0.5;  // below the norm of the formula model's gradients
constexpr double kScale = 65536;

/// Replaces this rank's sum of squares by infinity on its way to the other ranks, if it is told to.
class FabricatedOverflow final : public comm::ObservedCommunicator {
 public:
  explicit FabricatedOverflow(comm::Communicator& inner)
      : ObservedCommunicator(inner, [](const comm::Message&, std::size_t) {}), own_(inner) {}

  bool overflows = false;

  void run(const comm::CallArguments& arguments) override {
    const bool fabricates = overflows && arguments.operation == comm::Operation::kAllGather &&
                            arguments.message.name == Gpt2Messages::losses_and_norms().name;
    if (!fabricates) return own_.run(arguments);
    const std::span<const double> input = arguments.input.as<double>();
    std::vector<double> numbers(input.begin(), input.end());
    numbers[1] = std::numeric_limits<double>::infinity();
    comm::CallArguments changed = arguments;
    changed.input = comm::ConstTensor(std::span<const double>(numbers));
    own_.run(changed);
  }

 private:
  comm::Communicator& own_;
};

/// The bits of parameters, moments and AdamW's count of steps.
class Bits final : public StateVisitor {
 public:
  void number(std::string_view name, std::uint64_t& value) override {
    if (name == "steps") all += std::to_string(value);
  }
  void tensor(std::string_view name, const comm::Tensor& tensor, std::span<const TensorPiece> /*pieces*/,
              Sharding /*sharding*/) override {
    if (name == "rounded values") return;  // a forward pass rounds the values of now
    all += std::string(name);
    all.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  std::string all;
};

struct Layout {
  const char* name;
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  int zero = 0;
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

std::shared_ptr<const PipelinePlan> plan_of(const Layout& layout, int micro_batches) {
  auto plan = std::make_shared<PipelinePlan>();
  const PipelineSchedule schedule =
      make_schedule(ScheduleKind::kOneForwardOneBackward, layout.pipeline, 1, micro_batches);
  plan->program = make_program(schedule, {});
  const int layers = kConfig.layers / layout.pipeline;
  for (int s = 0; s < layout.pipeline; ++s) plan->stages.push_back({s * layers, (s + 1) * layers, kConfig.layers});
  return plan;
}

/// One rank's model and step.
class Rank {
 public:
  Rank(const Layout& layout, comm::Communicator& world, const ModelPrecision& precision,
       const LossScaleConfig& loss_scale, int micro_batches = 1, double max_norm = kMaxNorm)
      : wire(world), groups_(parallel(layout), world), alone_(world.split(world.rank(), 0)) {
    comm::Communicator* const shared = groups_.group(comm::ParallelDimension::kTensor);
    comm::Communicator& tensor = shared == nullptr ? *alone_ : *shared;
    ModelRanks ranks;
    ranks.data.group = groups_.group(comm::ParallelDimension::kData);
    ranks.data.sharding.zero = layout.zero;
    ranks.data.sharding.micro_batches = micro_batches;
    ranks.data_stride = parallel(layout).stride(comm::ParallelDimension::kData);
    ranks.all = &wire;
    if (layout.pipeline > 1) {
      ranks.pipeline.group = groups_.group(comm::ParallelDimension::kPipeline);
      ranks.pipeline.stride = parallel(layout).stride(comm::ParallelDimension::kPipeline);
      ranks.pipeline.plan = plan_of(layout, micro_batches);
    }
    model_ = std::make_unique<Gpt2>(kConfig, make_host_ops({.precision = precision}, tensor), OptimizerConfig{},
                                    SlotOptions{}, ranks);
    set_formula_weights<float>(kConfig, model_->parameters<float>(), tensor);
    model_->upload_values();
    step.emplace(*model_, max_norm, UpdateRule::Norm::kAgreed, loss_scale);
  }

  StepResult take(int number, int micro_batches = 1, UpdateRule::Flags flags = UpdateRule::Flags::kReliable) {
    std::vector<std::vector<std::int32_t>> texts;
    for (int m = 0; m < micro_batches; ++m) {
      const auto stream = static_cast<std::uint64_t>(2 * (100 * number + 10 * m + groups_.coordinates().data));
      texts.push_back(formula_tokens(stream, 12, kConfig.vocabulary));
      texts.push_back(formula_tokens(stream + 1, 12, kConfig.vocabulary));
    }
    std::vector<MicroBatch> batches;
    for (std::size_t m = 0; m < texts.size(); m += 2) batches.push_back({texts[m], texts[m + 1], kShape});
    const StepResult result = step->take(batches, 0.01, flags);
    model_->spread_embedding();
    return result;
  }

  std::string bits() {
    Bits bits;
    step->visit_state(bits);
    return bits.all;
  }

  FabricatedOverflow wire;
  std::optional<TrainingStep> step;

 private:
  static comm::ParallelLayout parallel(const Layout& layout) {
    comm::ParallelLayout all;
    all.data = layout.data;
    all.pipeline = layout.pipeline;
    all.tensor = layout.tensor;
    return all;
  }

  comm::ParallelGroups groups_;
  std::unique_ptr<comm::Communicator> alone_;
  std::unique_ptr<Gpt2> model_;
};

template <class Body>
void on_ranks(const Layout& layout, const Body& body) {
  comm::run_ranks(layout.data * layout.pipeline * layout.tensor, kTestTimeout, body);
}

constexpr LossScaleConfig kDynamic{.kind = LossScaleConfig::Kind::kDynamic, .initial = kScale};
constexpr ModelPrecision kFp16{Precision::kFloat16, Precision::kFloat16};

class LossScaleOnEightRanks : public ::testing::TestWithParam<Layout> {};

TEST_P(LossScaleOnEightRanks, AnOverflowOnOneSkipsOnAll) {
  for (int broken = 0; broken < 8; broken += 3) {
    on_ranks(GetParam(), [&](comm::Communicator& world) {
      Rank rank(GetParam(), world, kFp16, kDynamic, 2);
      Rank spared(GetParam(), world, kFp16, kDynamic, 2);
      // The sums of squares of scaled gradients are far beyond 65504, and no overflow.
      ASSERT_TRUE(rank.take(0, 2).updated);
      spared.take(0, 2);
      const std::string before = rank.bits();
      rank.wire.overflows = world.rank() == broken;
      const StepResult skipped = rank.take(1, 2);
      rank.wire.overflows = false;
      EXPECT_FALSE(skipped.updated);
      EXPECT_EQ(skipped.loss_scale, kScale);
      EXPECT_TRUE(rank.bits() == before) << "parameters, moments and the optimizer's count of steps";
      EXPECT_EQ(rank.step->scaler().scale(), kScale / 2);
      EXPECT_EQ(rank.step->scaler().skipped(), 1U);
      // A scale of half the size gives the same bits if no number is too small for float16.
      const StepResult next = rank.take(2, 2);
      EXPECT_TRUE(next.updated);
      EXPECT_NEAR(next.gradient_norm, spared.take(2, 2).gradient_norm, 1e-4 * next.gradient_norm);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LossScaleOnEightRanks,
                         ::testing::Values(Layout{"tensor", 1, 1, 8}, Layout{"data", 8}, Layout{"zero_1", 8, 1, 1, 1},
                                           Layout{"zero_2", 8, 1, 1, 2}, Layout{"zero_3", 4, 1, 2, 3},
                                           Layout{"pipeline", 2, 2, 2}, Layout{"pipeline_zero_1", 2, 2, 2, 1}),
                         [](const auto& instance) { return std::string(instance.param.name); });

// Clipping by a norm with the scale would shrink every gradient; powers of two round nothing.
TEST(LossScale, APowerOfTwoChangesNoBitOfFloat32) {
  for (const Layout& layout : {Layout{"one"}, Layout{"all", 2, 2, 2}, Layout{"zero_2", 2, 1, 1, 2}}) {
    for (const double max_norm : {0.0, kMaxNorm}) {
      on_ranks(layout, [&](comm::Communicator& world) {
        Rank plain(layout, world, {}, {}, 2, max_norm);
        Rank scaled(layout, world, {}, {.kind = LossScaleConfig::Kind::kStatic, .initial = 1024}, 2, max_norm);
        for (int i = 0; i < 3; ++i) {
          const StepResult want = plain.take(i, 2);
          const StepResult got = scaled.take(i, 2);
          EXPECT_TRUE(got.updated);
          EXPECT_GT(want.gradient_norm, kMaxNorm);
          EXPECT_EQ(got.loss, want.loss);
          EXPECT_EQ(got.gradient_norm, want.gradient_norm);
          EXPECT_EQ(got.loss_scale, 1024);
        }
        EXPECT_TRUE(scaled.bits() == plain.bits()) << layout.name;
      });
    }
  }
}

// Gradients that are too large for float16 lower the scale until they fit; the skipped steps have no other effect.
TEST(LossScale, FallsUntilGradientsFit) {
  const Layout layout{"tensor", 1, 1, 2};
  on_ranks(layout, [&](comm::Communicator& world) {
    Rank rank(layout, world, kFp16, {.kind = LossScaleConfig::Kind::kDynamic, .initial = 0x1p40});
    int skipped = 0;
    while (!rank.take(0).updated) ++skipped;
    EXPECT_GT(skipped, 10);
    EXPECT_LT(skipped, 35);
    const double scale = std::ldexp(1.0, 40 - skipped);
    EXPECT_EQ(rank.step->scaler().scale(), scale);
    Rank fits(layout, world, kFp16, {.kind = LossScaleConfig::Kind::kStatic, .initial = scale});
    EXPECT_TRUE(fits.take(0).updated);
    EXPECT_TRUE(rank.bits() == fits.bits());
    Rank large(layout, world, kFp16, {.kind = LossScaleConfig::Kind::kStatic, .initial = 2 * scale});
    EXPECT_FALSE(large.take(0).updated);
  });
}

// float16 without a scale loses gradients below 2^-24; a scale brings them back.
TEST(LossScale, KeepsSmallGradients) {
  const Layout layout{"tensor", 1, 1, 2};
  std::vector<double> norms;
  on_ranks(layout, [&](comm::Communicator& world) {
    // The loss of 1 / 2^22 of the usual one: as of a batch of so many more targets.
    const auto norm_with = [&](const ModelPrecision& precision, double scale) {
      Rank rank(layout, world, precision, {.kind = LossScaleConfig::Kind::kStatic, .initial = scale * 0x1p-22});
      return rank.take(0).gradient_norm;
    };
    const double exact = norm_with({}, 1);
    EXPECT_NEAR(norm_with(kFp16, 0x1p22), exact, 0.01 * exact);
    EXPECT_LT(norm_with(kFp16, 1), 0.7 * exact);
  });
}

TEST(LossScale, RanksPartWhereTheFlagIsLost) {
  using Flags = UpdateRule::Flags;
  for (const int zero : {0, 1}) {
    const Layout layout{"tensor and data", 2, 1, 2, zero};
    on_ranks(layout, [&](comm::Communicator& world) {
      Rank rank(layout, world, kFp16, kDynamic);
      rank.take(0, 1, Flags::kHeard);
      const std::string before = rank.bits();
      rank.wire.overflows = world.rank() == 1;
      const bool misses = world.rank() == 2;
      const StepResult result = rank.take(1, 1, misses ? Flags::kMissed : Flags::kHeard);
      EXPECT_EQ(result.updated, misses);
      EXPECT_EQ(rank.step->scaler().scale(), misses ? kScale : kScale / 2);
      if (zero == 0) {
        EXPECT_EQ(rank.bits() == before, !misses);
      }
      rank.wire.overflows = false;
      EXPECT_TRUE(rank.take(2, 1, Flags::kHeard).updated);
    });
  }
}

// A rank always knows of its own overflow.
TEST(LossScale, ARankSkipsItsOwnOverflow) {
  const std::vector<RankNumbers> ranks = {{1, 4}, {1, std::numeric_limits<double>::infinity()}};
  UpdateRule rule{.max_gradient_norm = 3, .loss_scale = 2};
  rule.flags = UpdateRule::Flags::kMissed;
  EXPECT_TRUE(decide_update(ranks, 1, rule).skips());
  const UpdateDecision decision = decide_update(ranks, 0, rule);
  EXPECT_EQ(decision.gradient_norm, 1) << "of the rank's own squares: sqrt(4) / 2";
  EXPECT_EQ(decision.factor, 0.5);
  rule.flags = UpdateRule::Flags::kHeard;
  EXPECT_TRUE(decide_update(ranks, 0, rule).skips());
  EXPECT_EQ(decide_update(std::vector<RankNumbers>{{1, 144}}, 0, {.max_gradient_norm = 3, .loss_scale = 2}).factor,
            3 / (6 + 1e-6) / 2);
}

}  // namespace
}  // namespace droptest::models::loss_scale_test
