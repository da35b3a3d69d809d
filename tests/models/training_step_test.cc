// SPDX-License-Identifier: Apache-2.0
#include "models/training_step.h"

#include <gtest/gtest.h>

#include <limits>

#include "models/kernels/cross_entropy.h"
#include "sim/error.h"
#include "tests/models/every_implementation.h"
#include "tests/models/norm_over_ranks.h"

namespace droptest::models::training_step_test {
namespace {

const Gpt2Config kConfig{2, 24, 3, 8, 31};
constexpr BatchShape kShape{2, 5};
constexpr double kMaxNorm = 0.5;  // below the norm of the formula model's gradients

/// Micro-batch number i of the tests.
struct Tokens {
  explicit Tokens(std::uint64_t i)
      : tokens(formula_tokens(2 * i, 10, kConfig.vocabulary)),
        targets(formula_tokens(2 * i + 1, 10, kConfig.vocabulary)) {}
  std::vector<std::int32_t> tokens, targets;
  MicroBatch batch() const { return {tokens, targets, kShape}; }
};
const Tokens kFirst(0), kSecond(1), kThird(2);

/// A value of the last norm's gain, on one rank: a value that is not finite makes all gradients not finite.
void set_gain(Gpt2& model, double value) {
  model.download(Gpt2::Fields::kValues);
  with_parameters(model, [&](auto parameters) {
    auto& gain = parameters[parameters.size() - 2].value[0];
    gain = static_cast<std::remove_reference_t<decltype(gain)>>(value);
  });
  model.upload_values();
}

TEST(TrainingStep, IsItsPartsOneAfterAnother) {
  for (const int ranks : {1, 3}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      const auto whole = formula_model(kConfig, implementation.make(group), group);
      const auto parts = formula_model(kConfig, implementation.make(group), group);
      TrainingStep step(*whole, kMaxNorm);
      for (int i = 0; i < 3; ++i) {
        const std::vector<MicroBatch> batches = {kFirst.batch(), kSecond.batch(), kThird.batch()};
        const StepResult result = step.take(batches, 0.01);
        parts->zero_gradients();
        for (const MicroBatch& batch : batches) {
          parts->forward_backward(batch.tokens, batch.targets, batch.shape, 1.0 / 3);
        }
        const Gpt2::StepSums sums = parts->step_sums();
        const double norm = norm_over_ranks(sums.gradient_squares, group);
        EXPECT_GT(norm, kMaxNorm);
        parts->step(0.01, clip_scale(norm, kMaxNorm));
        EXPECT_EQ(result.loss, sums.losses / 3);
        EXPECT_EQ(result.gradient_norm, norm);
        EXPECT_TRUE(result.updated);
        expect_equal(numbers_of(*whole, Field::kValue), numbers_of(*parts, Field::kValue), "value");
      }
    });
  }
}

TEST(TrainingStep, WithoutAMaximumGradientsAreNotClipped) {
  on_every_implementation(1, [](const Implementation& implementation, comm::Communicator& group) {
    const auto whole = formula_model(kConfig, implementation.make(group), group, {.epsilon = 1});
    const auto parts = formula_model(kConfig, implementation.make(group), group, {.epsilon = 1});
    const std::vector<MicroBatch> batches = {kFirst.batch()};
    TrainingStep(*whole, 0).take(batches, 0.1);
    parts->zero_gradients();
    parts->forward_backward(kFirst.tokens, kFirst.targets, kShape, 1);
    parts->step(0.1, 1);
    expect_equal(numbers_of(*whole, Field::kValue), numbers_of(*parts, Field::kValue), "value");
  });
}

// One target of the first micro-batch, all of the second, none of the third.
TEST(TrainingStep, TargetsCountAlikeInWhicheverMicroBatchTheyAre) {
  for (const int ranks : {1, 2}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      const double tolerance = std::max(implementation.tolerance, 1e-12);
      std::vector<std::int32_t> one(10, kIgnoredTarget);
      one[4] = kFirst.targets[4];
      const std::vector<std::int32_t> none(10, kIgnoredTarget);
      const std::vector<MicroBatch> batches = {
          {kFirst.tokens, one, kShape}, kSecond.batch(), {kThird.tokens, none, kShape}};
      const auto whole = formula_model(kConfig, implementation.make(group), group);
      const auto parts = formula_model(kConfig, implementation.make(group), group);
      const StepResult result = TrainingStep(*whole, 0).take(batches, 0.01);
      const double loss_of_one = parts->evaluate(kFirst.tokens, one, kShape);
      const double loss_of_all = parts->evaluate(kSecond.tokens, kSecond.targets, kShape);
      EXPECT_NEAR(result.loss, (loss_of_one + 10 * loss_of_all) / 11, tolerance * result.loss);
      parts->zero_gradients();
      for (const MicroBatch& batch : batches) {
        parts->forward_backward(batch.tokens, batch.targets, batch.shape, 1.0, 11);
      }
      EXPECT_EQ(result.gradient_norm, norm_over_ranks(parts->step_sums().gradient_squares, group));
      parts->step(0.01, 1);
      expect_equal(numbers_of(*whole, Field::kValue), numbers_of(*parts, Field::kValue), "value");
      const std::vector<MicroBatch> nothing = {{kThird.tokens, none, kShape}, {kFirst.tokens, none, kShape}};
      EXPECT_EQ(TrainingStep(*whole, 0).take(nothing, 0.01).loss, 0);
      EXPECT_THROW(TrainingStep(*whole, 0).take({}, 0.01), CheckError);
    });
  }
}

// Weights and moments stay, and the skipped step does not count among AdamW's.
TEST(TrainingStep, OneThatIsNotFiniteLeavesNoTrace) {
  for (const int ranks : {1, 2}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      const auto model = formula_model(kConfig, implementation.make(group), group);
      const auto spared = formula_model(kConfig, implementation.make(group), group);
      TrainingStep step(*model, kMaxNorm);
      TrainingStep spared_step(*spared, kMaxNorm);
      const std::vector<MicroBatch> first = {kFirst.batch()};
      const std::vector<MicroBatch> second = {kSecond.batch()};
      step.take(first, 0.01);
      spared_step.take(first, 0.01);
      const double gain = numbers_of(
          *model,
          Field::kValue)[numbers_of(*model, Field::kValue).size() - 2 * static_cast<std::size_t>(kConfig.width)];
      // On one rank only.
      if (group.rank() == 0) set_gain(*model, std::numeric_limits<double>::infinity());
      const std::vector<double> before = numbers_of(*model, Field::kValue);
      const StepResult result = step.take(second, 0.01);
      EXPECT_FALSE(result.updated);
      EXPECT_FALSE(std::isfinite(result.loss) && std::isfinite(result.gradient_norm));
      expect_equal(numbers_of(*model, Field::kValue), before, "value");
      if (group.rank() == 0) set_gain(*model, gain);
      for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(step.take(second, 0.01).updated);
        spared_step.take(second, 0.01);
        expect_equal(numbers_of(*model, Field::kValue), numbers_of(*spared, Field::kValue), "value");
      }
    });
  }
}

/// Copies state out of an object, or into it.
class Copies final : public StateVisitor {
 public:
  enum class Way : std::uint8_t { kSave, kRestore };
  explicit Copies(Ops& ops) : ops_(&ops) {}
  void begin(Way way, Ops& ops) {
    way_ = way;
    ops_ = &ops;
  }

  void number(std::string_view name, std::uint64_t& value) override {
    std::uint64_t& copy = numbers_[std::string(name)];
    (way_ == Way::kSave ? copy : value) = way_ == Way::kSave ? value : copy;
  }
  void tensor(std::string_view name, const comm::Tensor& tensor, std::span<const TensorPiece> pieces,
              Sharding /*sharding*/) override {
    EXPECT_FALSE(pieces.empty());
    std::vector<std::byte>& copy = tensors_[std::string(name)];
    copy.resize(tensor.bytes.size());
    if (way_ == Way::kSave) {
      ops_->copy_to_host(tensor, copy);
    } else {
      ops_->copy_from_host(copy, tensor);
    }
    ops_->synchronize();
  }

 private:
  Ops* ops_;
  Way way_ = Way::kSave;
  std::map<std::string, std::uint64_t> numbers_;
  std::map<std::string, std::vector<std::byte>> tensors_;
};

TEST(TrainingStep, GoesOnFromItsStateToTheSameBits) {
  for (const int ranks : {1, 2}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      const std::vector<MicroBatch> first = {kFirst.batch()};
      const std::vector<MicroBatch> second = {kSecond.batch(), kThird.batch()};
      std::unique_ptr<Ops> ops = implementation.make(group);
      Ops& saved_from = *ops;
      const auto model = formula_model(kConfig, std::move(ops), group);
      TrainingStep step(*model, kMaxNorm);
      step.take(first, 0.01);
      step.take(second, 0.01);
      Copies copies(saved_from);
      step.visit_state(copies);
      std::unique_ptr<Ops> other_ops = implementation.make(group);
      Ops& restored_to = *other_ops;
      Gpt2 other(kConfig, std::move(other_ops));
      TrainingStep restored(other, kMaxNorm);
      copies.begin(Copies::Way::kRestore, restored_to);
      restored.visit_state(copies);
      for (int i = 0; i < 2; ++i) {
        const StepResult want = step.take(first, 0.02);
        const StepResult got = restored.take(first, 0.02);
        EXPECT_EQ(got.loss, want.loss);
        EXPECT_EQ(got.gradient_norm, want.gradient_norm);
        expect_equal(numbers_of(other, Field::kValue), numbers_of(*model, Field::kValue), "value");
      }
    });
  }
}

TEST(TrainingStep, MeansOfEqualNumbersAreThatNumber) {
  for (const double value : {0.1, 5.4159265358979, 1e300}) {
    EXPECT_EQ(mean_of_ranks(std::vector<double>(3, value)), value);
    EXPECT_EQ(decide_update(std::vector<RankNumbers>(7, {value, 1}), 0, {}).loss, value);
  }
  EXPECT_EQ(mean_of_ranks(std::vector<double>{1, 2, 6}), 3);
  EXPECT_EQ(decide_update(std::vector<RankNumbers>{{2, 1}, {4, 1}, {12, 1}}, 0, {0, 2}).loss, 3);
}

// Two replicas of two parts each, which lie next to each other or two apart.
TEST(TrainingStep, ReplicasHaveOneNormOrEachItsOwn) {
  UpdateRule rule{.max_gradient_norm = 1, .data_ranks = 2, .data_stride = 2};
  const std::vector<RankNumbers> ranks = {{1, 9}, {1, 16}, {3, 50}, {3, 25}};
  for (int rank = 0; rank < 4; ++rank) {
    const UpdateDecision agreed = decide_update(ranks, rank, rule);
    EXPECT_EQ(agreed.loss, 2);
    EXPECT_EQ(agreed.gradient_norm, std::sqrt(50));
    rule.norm = UpdateRule::Norm::kOwn;
    const UpdateDecision own = decide_update(ranks, rank, rule);
    EXPECT_EQ(own.gradient_norm, rank < 2 ? 5 : std::sqrt(75));
    EXPECT_EQ(own.factor, clip_scale(own.gradient_norm, 1));
    rule.norm = UpdateRule::Norm::kAgreed;
  }
  rule.data_stride = 1;
  EXPECT_EQ(decide_update(ranks, 0, rule).gradient_norm, std::sqrt(50));
  rule.norm = UpdateRule::Norm::kOwn;
  EXPECT_EQ(decide_update(ranks, 2, rule).gradient_norm, std::sqrt(59));
  // One replica's norm is not finite: none updates.
  const std::vector<RankNumbers> broken = {{1, 9}, {1, 16}, {3, std::nan("")}, {3, 25}};
  for (const int stride : {1, 2}) {
    rule.data_stride = stride;
    for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(decide_update(broken, rank, rule).skips());
  }
}

// Rank = sequence + 2 tensor + 4 data: each (data, sequence) has the squares of its two tensor-parallel ranks.
TEST(TrainingStep, SequenceRanksHaveNormsOfTheirOwn) {
  UpdateRule rule{.data_ranks = 2, .data_stride = 4, .sequence_ranks = 2, .sequence_stride = 1};
  rule.norm = UpdateRule::Norm::kOwn;
  const std::vector<RankNumbers> ranks = {{1, 1}, {1, 2}, {1, 4}, {1, 8}, {1, 16}, {1, 32}, {1, 64}, {1, 128}};
  const std::vector<double> squares = {5, 10, 5, 10, 80, 160, 80, 160};
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(decide_update(ranks, rank, rule).gradient_norm, std::sqrt(squares[static_cast<std::size_t>(rank)]));
  }
  rule.norm = UpdateRule::Norm::kAgreed;
  EXPECT_EQ(decide_update(ranks, 3, rule).gradient_norm, std::sqrt(255.0 / 4));
}

TEST(TrainingStep, IsSkippedWhereLossOrNormIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto decided = [](double loss, double squares) {
    return decide_update(std::vector<RankNumbers>{{1, 1}, {loss, squares}}, 0, {1, 1});
  };
  EXPECT_FALSE(decided(2, 9).skips());
  EXPECT_TRUE(decided(infinity, 9).skips());
  EXPECT_TRUE(decided(std::nan(""), 9).skips());
  EXPECT_TRUE(decided(2, infinity).skips());
  EXPECT_TRUE(decided(2, std::nan("")).skips());
}

}  // namespace
}  // namespace droptest::models::training_step_test
