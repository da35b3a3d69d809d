// SPDX-License-Identifier: Apache-2.0
// All-reduce under loss: closed forms are compared with the shared vectors, and measured error and survival with both.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/lab/collective_experiment.h"
#include "comm/lab/collective_theory.h"
#include "comm/lossy/paths/path_registry.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"

namespace droptest::comm::lossy_theory_test {
namespace {

nlohmann::json rows() {
  std::ifstream file(DROPTEST_VECTORS "/collectives_under_loss.json");
  return nlohmann::json::parse(file).at("rows");
}

nlohmann::json direct_rows() {
  nlohmann::json result = nlohmann::json::array();
  for (const auto& row : rows()) {
    if (row.at("algorithm") == "direct") result.push_back(row);
  }
  EXPECT_EQ(result.size(), 12U);
  return result;
}

// "to 1e-12": absolute, for values of order one.
void expect_equal(double got, const nlohmann::json& row, const char* key) {
  EXPECT_NEAR(got, row.at(key).get<double>(), 1e-12) << key << " of " << row.dump();
}

LossyAllReduce case_of(const nlohmann::json& row) {
  LossyAllReduce c;
  c.ranks = row.at("ranks");
  c.reduce_loss_rate = row.at("p");
  c.gather_loss_rate = row.at("p");
  return c;
}

TEST(CollectiveTheory, DirectEqualsTheVectors) {
  for (const auto& row : direct_rows()) {
    LossyAllReduce c = case_of(row);
    expect_equal(expected_survival(c)->reduce, row, "survival_reduce_scatter");
    expect_equal(expected_survival(c)->gather, row, "survival_all_gather");
    expect_equal(*expected_nmse(c), row, "nmse_independent_zero_fill");
    c.inputs = Inputs::kIdentical;
    expect_equal(*expected_nmse(c), row, "nmse_identical_zero_fill");
    c.inputs = Inputs::kIndependent;
    c.reduce_fill = Fill::kCountRescale;
    c.gather_loss_rate = 0;
    expect_equal(*expected_nmse(c), row, "nmse_independent_count_rescale_reduce_scatter_only");
  }
}

// The expectation by adding up all 2^M patterns of arrival of one element.
double enumerated_reduce_nmse(const LossyAllReduce& c) {
  const bool direct = c.path == "direct";
  const int exposed = direct ? c.ranks - 1 : c.ranks;
  const double p = c.reduce_loss_rate;
  const double n = c.ranks;
  double expectation = 0;
  for (unsigned pattern = 0; pattern < (1U << static_cast<unsigned>(exposed)); ++pattern) {
    const int lost = __builtin_popcount(pattern);
    const double probability = std::pow(p, lost) * std::pow(1 - p, exposed - lost);
    const double arrived = n - lost;
    double own = 1;
    double other = 1;
    if (c.reduce_fill == Fill::kCountRescale) own = other = arrived > 0 ? n / arrived : 0;
    if (c.reduce_fill == Fill::kInverseProbability) other = 1 / (1 - p);
    if (!direct) own = other;
    // Weight of each contribution in the result; the exact one is 1.
    const double kept = exposed - lost;
    const double own_exposed = direct ? 1 : 0;
    if (c.inputs == Inputs::kIdentical) {
      const double sum = own_exposed * own + kept * other;
      expectation += probability * (sum - n) * (sum - n) / (n * n);
    } else {
      const double error = own_exposed * (own - 1) * (own - 1) + kept * (other - 1) * (other - 1) + lost;
      expectation += probability * error / n;
    }
  }
  return expectation;
}

TEST(CollectiveTheory, EqualsTheSumOverAllPatternsOfArrival) {
  for (const std::string_view path : {"direct", "contribution"}) {
    for (const Fill fill : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability}) {
      for (const Inputs inputs : {Inputs::kIndependent, Inputs::kIdentical}) {
        for (const int ranks : {2, 3, 8}) {
          for (const double p : {0.001, 0.2, 0.9}) {
            LossyAllReduce c{path, ranks, p, 0, fill, Fill::kZero, Consistency::kPerReceiver, inputs};
            ASSERT_TRUE(expected_nmse(c).has_value());
            EXPECT_NEAR(*expected_nmse(c), enumerated_reduce_nmse(c), 1e-12 * std::max(1.0, 1 / (1 - p)))
                << path << " " << fill_entry(fill).name << " " << ranks << " " << p;
          }
        }
      }
    }
  }
}

// The fill `own` of a mean: the receiver's contribution replaces lost ones.
TEST(CollectiveTheory, OwnContributionsHaveTheErrorOfAllPatternsOfArrival) {
  for (const int ranks : {2, 3, 8}) {
    for (const double p : {0.0, 0.2, 0.9, 1.0}) {
      double independent = 0;
      for (int lost = 0; lost < ranks; ++lost) {
        double patterns = 1;
        for (int i = 0; i < lost; ++i) patterns *= static_cast<double>(ranks - 1 - i) / (i + 1);
        const double probability = patterns * std::pow(p, lost) * std::pow(1 - p, ranks - 1 - lost);
        // lost x_r less the lost ones, over N, relative to the mean's 1 / N.
        independent += probability * (lost * lost + lost) / ranks;
      }
      LossyAllReduce c{"direct", ranks, p, 0, Fill::kOwn};
      c.op = ReduceOp::kMean;
      EXPECT_NEAR(*expected_nmse(c), independent, 1e-12 * ranks) << ranks << " " << p;
      c.gather_loss_rate = 1;
      c.gather_fill = Fill::kOwn;
      if (p == 1) {
        EXPECT_NEAR(*expected_nmse(c), ranks - 1, 1e-12 * ranks) << "all keep their own";
      }
      c.inputs = Inputs::kIdentical;
      EXPECT_NEAR(*expected_nmse(c), 0, 1e-12);
    }
  }
}

TEST(CollectiveTheory, StaleHasNoClosedForm) {
  EXPECT_FALSE(expected_nmse({"direct", 4, 0.1, 0, Fill::kStale}).has_value());
  EXPECT_FALSE(expected_nmse({"direct", 4, 0, 0.1, Fill::kZero, Fill::kStale}).has_value());
  EXPECT_EQ(expected_nmse({"direct", 4, 0, 0, Fill::kStale, Fill::kStale}), 0.0);
}

void expect_within(const Estimate& estimate, const std::string& what) {
  ASSERT_TRUE(estimate.expected.has_value()) << what;
  // Four standard errors; the rounding of float sums is the floor if nothing else deviates.
  EXPECT_NEAR(estimate.measured, *estimate.expected, 4 * estimate.standard_error + 1e-12) << what;
}

CollectiveExperiment experiment_of(int ranks, double p_reduce, double p_gather) {
  CollectiveExperiment experiment;
  experiment.ranks = ranks;
  experiment.elements = 16384;
  experiment.trials = 24;
  experiment.seed = 77;
  experiment.network.payload_bytes = 64;
  experiment.network.reduce.loss = std::make_shared<sim::Bernoulli>(p_reduce);
  experiment.network.gather.loss = std::make_shared<sim::Bernoulli>(p_gather);
  return experiment;
}

TEST(CollectiveExperiment, DirectAgreesWithTheVectors) {
  for (const auto& row : direct_rows()) {
    const int ranks = row.at("ranks");
    const double p = row.at("p");
    if (ranks > 8) continue;
    for (const Inputs inputs : {Inputs::kIndependent, Inputs::kIdentical}) {
      CollectiveExperiment experiment = experiment_of(ranks, p, p);
      experiment.inputs = inputs;
      const CollectiveExperimentResult result = run_collective_experiment(experiment);
      const char* key = inputs == Inputs::kIdentical ? "nmse_identical_zero_fill" : "nmse_independent_zero_fill";
      expect_equal(*result.nmse.expected, row, key);
      expect_within(result.nmse, row.dump());
      expect_within(result.survival_reduce, row.dump());
      expect_within(result.survival_gather, row.dump());
      expect_within(result.survival, row.dump());
      EXPECT_GT(result.nmse.standard_error, 0);
      EXPECT_LT(result.nmse.standard_error, 0.25 * *result.nmse.expected);
    }
    CollectiveExperiment experiment = experiment_of(ranks, p, 0);
    experiment.network.reduce.fill = Fill::kCountRescale;
    const CollectiveExperimentResult result = run_collective_experiment(experiment);
    expect_equal(*result.nmse.expected, row, "nmse_independent_count_rescale_reduce_scatter_only");
    expect_within(result.nmse, row.dump());
  }
}

// The rows of the other algorithms that are quick; scripts/check_collectives.py runs all of them.
TEST(CollectiveExperiment, PathsOfHopsAgreeWithTheVectors) {
  for (const auto& row : rows()) {
    const int ranks = row.at("ranks");
    const double p = row.at("p");
    const std::string algorithm = row.at("algorithm");
    if (algorithm == "direct" || ranks > 8 || p < 0.01) continue;
    CollectiveExperiment experiment = experiment_of(ranks, p, p);
    experiment.network.path = path_entry(algorithm == "binary_tree" ? "tree" : algorithm).name;
    experiment.elements = 8192;
    for (const Inputs inputs : {Inputs::kIndependent, Inputs::kIdentical}) {
      experiment.inputs = inputs;
      const CollectiveExperimentResult result = run_collective_experiment(experiment);
      const char* key = inputs == Inputs::kIdentical ? "nmse_identical_zero_fill" : "nmse_independent_zero_fill";
      expect_equal(*result.nmse.expected, row, key);
      expect_equal(*result.survival_reduce.expected, row, "survival_reduce_scatter");
      expect_equal(*result.survival_gather.expected, row, "survival_all_gather");
      expect_within(result.nmse, row.dump());
      expect_within(result.survival_reduce, row.dump());
      expect_within(result.survival_gather, row.dump());
    }
    experiment.inputs = Inputs::kIndependent;
    experiment.network.gather.loss = nullptr;
    experiment.network.reduce.fill = Fill::kCountRescale;
    const CollectiveExperimentResult result = run_collective_experiment(experiment);
    expect_equal(*result.nmse.expected, row, "nmse_independent_count_rescale_reduce_scatter_only");
    expect_within(result.nmse, row.dump());
  }
}

TEST(CollectiveExperiment, AScaledContributionHasNoMeaningWherePartialSumsTravel) {
  CollectiveExperiment experiment = experiment_of(3, 0.15, 0.1);
  experiment.network.path = "ring";
  experiment.network.gather.fill = Fill::kOwnScaled;
  EXPECT_THROW(run_collective_experiment(experiment), ConfigError);
}

TEST(CollectiveExperiment, EveryPathAndFillAgreesWithItsExpectation) {
  for (const PathEntry& entry : paths()) {
    const std::string_view path = entry.name;
    for (const Consistency consistency : {Consistency::kPerReceiver, Consistency::kShared}) {
      if (consistency == Consistency::kShared && !entry.can_share) continue;
      for (const Fill reduce : {Fill::kZero, Fill::kCountRescale, Fill::kInverseProbability, Fill::kOwn}) {
        for (const Fill gather : {Fill::kZero, Fill::kOwn, Fill::kOwnScaled}) {
          if (gather == Fill::kOwnScaled && !entry.can_share) continue;
          if (reduce == Fill::kOwn && path != "direct") continue;
          // Only fills that do not depend on N are also those of a mean.
          const bool of_mean = reduce == Fill::kOwn || (reduce == Fill::kCountRescale && gather != Fill::kZero);
          for (const Inputs inputs : {Inputs::kIndependent, Inputs::kIdentical}) {
            CollectiveExperiment experiment = experiment_of(3, 0.15, 0.1);
            experiment.op = of_mean ? ReduceOp::kMean : ReduceOp::kSum;
            experiment.network.path = path;
            experiment.network.group_ranks = entry.has_groups ? 2 : 0;
            experiment.network.consistency = consistency;
            experiment.network.reduce.fill = reduce;
            experiment.network.gather.fill = gather;
            experiment.inputs = inputs;
            experiment.elements = 8192;
            const CollectiveExperimentResult result = run_collective_experiment(experiment);
            const std::string what = std::string(path) + " " + std::string(fill_entry(reduce).name) + " " +
                                     std::string(fill_entry(gather).name) +
                                     (consistency == Consistency::kShared ? " shared" : " per_receiver") +
                                     (inputs == Inputs::kIdentical ? " identical" : " independent");
            expect_within(result.nmse, what);
            expect_within(result.survival_reduce, what);
            expect_within(result.survival_gather, what);
          }
        }
      }
    }
  }
}

double spread(const std::vector<double>& values) {
  double mean = 0;
  for (const double v : values) mean += v / static_cast<double>(values.size());
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

// Bursts at an equal loss rate: the same mean error with a larger spread over collectives, by the square root of the
// ratio V of the count variances (about (2 B - 1) for rare bursts of mean B).
TEST(CollectiveExperiment, BurstsKeepTheMeanErrorAndWidenItsSpread) {
  CollectiveExperiment experiment = experiment_of(4, 0.05, 0.05);
  experiment.trials = 200;
  experiment.network.payload_bytes = 16;
  const CollectiveExperimentResult bernoulli = run_collective_experiment(experiment);
  const auto bursts = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.05, 8));
  experiment.network.reduce.loss = bursts;
  experiment.network.gather.loss = bursts;
  const CollectiveExperimentResult bursty = run_collective_experiment(experiment);
  EXPECT_EQ(*bernoulli.nmse.expected, *bursty.nmse.expected);
  expect_within(bernoulli.nmse, "bernoulli");
  expect_within(bursty.nmse, "bursts");
  expect_within(bursty.survival, "bursts");
  EXPECT_GT(spread(bursty.nmse_by_trial), 2 * spread(bernoulli.nmse_by_trial));
}

TEST(CollectiveExperiment, IsDeterministicAndOneRankLosesNothing) {
  CollectiveExperiment experiment = experiment_of(3, 0.3, 0.3);
  experiment.trials = 2;
  const auto first = run_collective_experiment(experiment);
  const auto second = run_collective_experiment(experiment);
  EXPECT_EQ(first.nmse.measured, second.nmse.measured);
  EXPECT_EQ(first.statistics.digest, second.statistics.digest);
  experiment.ranks = 1;
  const auto alone = run_collective_experiment(experiment);
  EXPECT_EQ(alone.nmse.measured, 0);
  EXPECT_EQ(alone.survival.measured, 1);
  EXPECT_EQ(*alone.nmse.expected, 0);
  EXPECT_EQ(*alone.survival.expected, 1);
}

TEST(CollectiveExperiment, RefusesWhatHasNoMeaning) {
  for (const auto& break_it :
       {+[](CollectiveExperiment& e) { e.ranks = 0; }, +[](CollectiveExperiment& e) { e.elements = 0; },
        +[](CollectiveExperiment& e) { e.trials = 0; }, +[](CollectiveExperiment& e) { e.network.path = "pigeon"; }}) {
    CollectiveExperiment experiment = experiment_of(2, 0.1, 0.1);
    break_it(experiment);
    EXPECT_THROW(run_collective_experiment(experiment), ConfigError);
  }
}

}  // namespace
}  // namespace droptest::comm::lossy_theory_test
