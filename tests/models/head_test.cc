// SPDX-License-Identifier: Apache-2.0
// The loss of a model with ignored targets, its mean over numbers of targets, and positions that do not begin at 0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/kernels/cross_entropy.h"
#include "sim/error.h"
#include "tests/models/every_implementation.h"

namespace droptest::models::head_test {
namespace {

const Gpt2Config kConfig{2, 24, 3, 8, 31};
constexpr BatchShape kShape{2, 5};
const std::vector<std::int32_t> kTokens = formula_tokens(0, 10, kConfig.vocabulary);
const std::vector<std::int32_t> kTargets = formula_tokens(1, 10, kConfig.vocabulary);

/// The targets with all others ignored.
std::vector<std::int32_t> only(const std::vector<int>& rows) {
  std::vector<std::int32_t> targets(kTargets.size(), kIgnoredTarget);
  for (const int row : rows) targets[static_cast<std::size_t>(row)] = kTargets[static_cast<std::size_t>(row)];
  return targets;
}

struct LossAndGradients {
  double loss = 0;
  std::vector<double> gradients;
};
LossAndGradients pass(Gpt2& model, const std::vector<std::int32_t>& targets, double mean_over) {
  model.zero_gradients();
  model.forward_backward(kTokens, targets, kShape, 1.0, mean_over);
  return {model.step_sums().losses, numbers_of(model, Field::kGradient)};
}

TEST(Head, TheMeanIsOverTheTargetsThatAreNotIgnored) {
  for (const int ranks : {1, 3}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      const auto model = formula_model(kConfig, implementation.make(group), group);
      const double tolerance = std::max(implementation.tolerance, 1e-12);
      double sum = 0;
      for (const int row : {1, 4, 7}) sum += model->evaluate(kTokens, only({row}), kShape);
      const LossAndGradients own = pass(*model, only({1, 4, 7}), Gpt2::kOwnTargets);
      EXPECT_NEAR(own.loss, sum / 3, tolerance * own.loss);
      EXPECT_EQ(model->evaluate(kTokens, only({1, 4, 7}), kShape), own.loss);
      // Parts of a batch that are divided by the number of all its targets add up to the batch.
      const LossAndGradients all = pass(*model, kTargets, Gpt2::kOwnTargets);
      EXPECT_EQ(pass(*model, kTargets, 10).loss, all.loss);
      const LossAndGradients some = pass(*model, only({1, 4, 7}), 10);
      const LossAndGradients others = pass(*model, only({0, 2, 3, 5, 6, 8, 9}), 10);
      EXPECT_NEAR(some.loss + others.loss, all.loss, tolerance * all.loss);
      std::vector<double> added = some.gradients;
      for (std::size_t i = 0; i < added.size(); ++i) added[i] += others.gradients[i];
      EXPECT_LE(relative_difference(added, all.gradients), 3 * tolerance);
    });
  }
}

TEST(Head, ABatchOfIgnoredTargetsHasNoLossAndNoGradient) {
  for (const int ranks : {1, 2}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      const auto model = formula_model(kConfig, implementation.make(group), group);
      const LossAndGradients none = pass(*model, only({}), Gpt2::kOwnTargets);
      EXPECT_EQ(none.loss, 0);
      expect_equal(none.gradients, std::vector<double>(none.gradients.size()), "gradient");
      EXPECT_EQ(model->evaluate(kTokens, only({}), kShape), 0);
    });
  }
}

// A model with the rows of wpe moved up has the results of the other's position 3 at position 0.
TEST(Positions, BeginWhereTheBatchSays) {
  for (const int ranks : {1, 2}) {
    on_every_implementation(ranks, [](const Implementation& implementation, comm::Communicator& group) {
      const auto later = formula_model(kConfig, implementation.make(group), group);
      const auto moved = formula_model(kConfig, implementation.make(group), group);
      const std::int64_t shift = 3 * kConfig.width;
      with_parameters(*moved, [&](auto parameters) {
        auto wpe = parameters[1].value;
        std::rotate(wpe.begin(), wpe.begin() + shift, wpe.end());
      });
      moved->upload_values();
      EXPECT_EQ(later->evaluate(kTokens, kTargets, {2, 5, 3}), moved->evaluate(kTokens, kTargets, kShape));
      EXPECT_NE(later->evaluate(kTokens, kTargets, {2, 5, 2}), moved->evaluate(kTokens, kTargets, kShape));
      for (Gpt2* model : {later.get(), moved.get()}) {
        model->zero_gradients();
        model->forward_backward(kTokens, kTargets, model == later.get() ? BatchShape{2, 5, 3} : kShape, 1.0);
      }
      const std::vector<double> got = numbers_of(*later, Field::kGradient);
      std::vector<double> want = numbers_of(*moved, Field::kGradient);
      std::size_t first = 0;
      with_parameters(*moved, [&](auto parameters) { first = parameters[0].value.size(); });
      const auto wpe = want.begin() + static_cast<std::ptrdiff_t>(first);
      const std::int64_t elems = std::int64_t{kConfig.context} * kConfig.width;
      std::rotate(wpe, wpe + (elems - shift), wpe + elems);
      expect_equal(got, want, "gradient");
    });
  }
}

TEST(Positions, StayWithinTheContext) {
  comm::run_ranks(1, kTestTimeout, [](comm::Communicator& group) {
    HostGpt2<float> model(kConfig, group, 1);
    const auto refusal = [&](const BatchShape& shape) -> std::string {
      try {
        model.model().evaluate(kTokens, kTargets, shape);
      } catch (const ConfigError& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(refusal({2, 5, 3}), "");
    EXPECT_THAT(refusal({2, 5, 4}), testing::HasSubstr("got 5 positions from 4 on, want them in [0, context = 8)"));
    EXPECT_THAT(refusal({2, 5, -1}), testing::HasSubstr("from -1 on"));
  });
}

}  // namespace
}  // namespace droptest::models::head_test
