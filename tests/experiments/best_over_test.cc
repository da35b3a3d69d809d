// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/best_over.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"

namespace droptest::experiments::best_over_test {
namespace {

using nlohmann::json;

/// Two loss rates, three learning rates, two seeds. Runs come seed by seed, loss rates slowest within.
SweepPlan plan() {
  return plan_sweep({comm::parse_json(R"({"name": "t", "data": {"text": "a"}, "parallel": {"tensor": 2},
      "network": {"loss": {"model": "bernoulli", "loss_rate": 0.1}}, "repeat": {"seeds": 2},
      "sweep": {"best_over": ["/training/learning_rate"],
                "cross": {"/training/learning_rate": [0.1, 0.2, 0.3],
                          "/network/loss/loss_rate": [{"label": "little", "value": 0.1}, 0.5]}}})",
                                      "s"),
                     "s"});
}

json summary(double selection, double validation, const std::string& status = "completed") {
  return {{"status", status}, {"validation", {{"selection_loss", selection}, {"final_loss", validation}}}};
}

TEST(BestOver, TheLowestMeanSelectionLossOverTheSeedsWins) {
  std::vector<json> summaries = {
      // seed 1: rate 0.1 at 0.1, 0.2, 0.3; rate 0.5 at the same values
      summary(3, 1), summary(2, 9), summary(4, 1), summary(5, 2), summary(6, 3), summary(1, 4),
      // seed 2
      summary(3, 1), summary(3, 7), summary(1, 1), summary(5, 4), summary(6, 3), summary(8, 6)};
  const std::vector<BestPoint> best = best_points(plan(), summaries);
  ASSERT_EQ(best.size(), 2U);
  // Means 3, 2.5, 2.5: of equal ones the first. The validation loss has no say.
  EXPECT_EQ(best[0].point, (json{{"/network/loss/loss_rate", 0.1}}));
  EXPECT_EQ(best[0].labels[0]["label"], "little");
  EXPECT_EQ(best[0].values, (json{{"/training/learning_rate", 0.2}}));
  EXPECT_EQ(best[0].runs, (std::vector<std::size_t>{1, 7}));
  EXPECT_EQ(best[0].mean_selection_loss, 2.5);
  EXPECT_EQ(best[0].mean_validation_loss, 8);
  // Means 5, 6, 4.5: seed by seed 0.1 would win once.
  EXPECT_EQ(best[1].values, (json{{"/training/learning_rate", 0.3}}));
  EXPECT_EQ(best[1].mean_validation_loss, 5);
}

TEST(BestOver, AValueThatLacksTheLossOfASeedDoesNotTakePart) {
  std::vector<json> summaries(12, summary(2, 2));
  summaries[0] = summary(1, 1);              // the best, but its other seed diverged
  summaries[6] = summary(1, 1, "diverged");  //
  summaries[7] = json();                     // not finished
  for (const std::size_t run : {3, 4, 11}) summaries[run]["validation"]["selection_loss"] = nullptr;
  const std::vector<BestPoint> best = best_points(plan(), summaries);
  EXPECT_EQ(best[0].values, (json{{"/training/learning_rate", 0.3}}));
  EXPECT_TRUE(best[1].values.is_null());
  EXPECT_TRUE(best[1].runs.empty());
}

TEST(BestOver, AWinnerWithoutAValidationLossHasNone) {
  std::vector<json> summaries(12, summary(2, 2));
  summaries[6]["validation"]["final_loss"] = nullptr;
  EXPECT_EQ(best_points(plan(), summaries)[0].mean_validation_loss, std::nullopt);
}

TEST(BestOver, ARunThatIsListedForSeveralSeedsOfTheNetworkIsOneTraining) {
  const SweepPlan lossless = plan_sweep({comm::parse_json(R"({"name": "t", "data": {"text": "a"},
      "parallel": {"tensor": 2}, "network": {"loss": {"model": "none"}}, "repeat": {"weights": 2, "network": 3},
      "sweep": {"best_over": ["/training/learning_rate"], "cross": {"/training/learning_rate": [0.1, 0.2]}}})",
                                                          "s"),
                                         "s"});
  const std::vector<json> summaries(lossless.runs.size(), summary(2, 3));
  ASSERT_EQ(summaries.size(), 12U);
  const std::vector<BestPoint> best = best_points(lossless, summaries);
  ASSERT_EQ(best.size(), 1U);
  EXPECT_EQ(best[0].runs.size(), 2U);
}

}  // namespace
}  // namespace droptest::experiments::best_over_test
