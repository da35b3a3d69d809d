// SPDX-License-Identifier: Apache-2.0
#include "comm/lab/drift_experiment.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"

namespace droptest::comm::drift_experiment_test {
namespace {

DriftExperiment experiment(double reduce_rate, double gather_rate) {
  DriftExperiment result;
  result.network.reduce = {std::make_shared<sim::Bernoulli>(reduce_rate), Fill::kInverseProbability};
  result.network.gather = {std::make_shared<sim::Bernoulli>(gather_rate), Fill::kStale};
  result.network.payload_bytes = 64;
  result.ranks = 4;
  result.elements = 2048;
  result.trials = 12;
  return result;
}

void expect_agrees(const Estimate& estimate) {
  ASSERT_TRUE(estimate.expected.has_value());
  EXPECT_LT(std::abs(estimate.measured - *estimate.expected), 4 * estimate.standard_error + 1e-12)
      << estimate.measured << " +- " << estimate.standard_error << ", expected " << *estimate.expected;
}

TEST(DriftExperiment, ReplicasDifferByTheAgesOfTheirParameters) {
  for (const double q : {0.1, 0.4}) {
    const DriftExperimentResult result = run_drift_experiment(experiment(0.1, q));
    EXPECT_DOUBLE_EQ(*result.between_replicas.expected, 2 * q / (1 - q * q));
    EXPECT_DOUBLE_EQ(*result.from_owner.expected, q / (1 - q));
    expect_agrees(result.between_replicas);
    expect_agrees(result.from_owner);
  }
}

TEST(DriftExperiment, StepsOfAnUnbiasedReductionAreLarger) {
  const DriftExperimentResult unbiased = run_drift_experiment(experiment(0.4, 0.1));
  EXPECT_DOUBLE_EQ(*unbiased.step.expected, (1 + 3 / 0.6) / 4);
  expect_agrees(unbiased.step);

  DriftExperiment zero = experiment(0.4, 0.1);
  zero.network.reduce.fill = Fill::kZero;
  const DriftExperimentResult biased = run_drift_experiment(zero);
  EXPECT_DOUBLE_EQ(*biased.step.expected, (1 + 3 * 0.6) / 4);
  expect_agrees(biased.step);
}

TEST(DriftExperiment, WithoutLossReplicasAreEqual) {
  const DriftExperimentResult result = run_drift_experiment(experiment(0, 0));
  EXPECT_EQ(result.between_replicas.measured, 0);
  EXPECT_EQ(result.from_owner.measured, 0);
  EXPECT_EQ(*result.between_replicas.expected, 0);
  EXPECT_LT(std::abs(result.step.measured - 1), 5 * std::sqrt(2.0 / 2048 / 12));
}

TEST(DriftExperiment, ReplicasThatMissTheSamePacketsAgree) {
  DriftExperiment shared = experiment(0, 0.4);
  shared.network.consistency = Consistency::kShared;
  const DriftExperimentResult result = run_drift_experiment(shared);
  EXPECT_NEAR(result.between_replicas.measured, 0, 1e-12);  // a difference of sums
  EXPECT_FALSE(result.between_replicas.expected.has_value());
}

TEST(DriftExperiment, TheClosedFormIsNotOfferedForBursts) {
  DriftExperiment bursts = experiment(0, 0.1);
  bursts.trials = 2;
  bursts.network.gather.loss = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.1, 8));
  const DriftExperimentResult result = run_drift_experiment(bursts);
  EXPECT_FALSE(result.between_replicas.expected.has_value());
  EXPECT_GT(result.between_replicas.measured, 0);
}

TEST(DriftExperiment, EqualExperimentsGiveEqualBits) {
  DriftExperiment small = experiment(0.1, 0.2);
  small.trials = 2;
  const DriftExperimentResult a = run_drift_experiment(small);
  const DriftExperimentResult b = run_drift_experiment(small);
  EXPECT_EQ(a.between_replicas.measured, b.between_replicas.measured);
  EXPECT_EQ(a.step.measured, b.step.measured);
}

TEST(DriftExperiment, RefusesWhatHasNoMeaning) {
  DriftExperiment two = experiment(0, 0.1);
  two.ranks = 2;
  EXPECT_THROW(run_drift_experiment(two), ConfigError);
  DriftExperiment none = experiment(0, 0.1);
  none.trials = 0;
  EXPECT_THROW(run_drift_experiment(none), ConfigError);
}

TEST(DriftExperiment, DriftGrowsWithoutBoundAtLossRateOne) {
  EXPECT_TRUE(std::isinf(expected_drift_between_replicas(1)));
  EXPECT_TRUE(std::isinf(expected_drift_from_owner(1)));
}

}  // namespace
}  // namespace droptest::comm::drift_experiment_test
