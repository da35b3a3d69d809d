// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/attempt_series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/gpt2/shard_plan.h"

namespace droptest::experiments::attempt_series_test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kUserError = 2;

/// Three replicas of two tensor-parallel ranks, which restart twice, after 1 s at first.
RunConfig restarting() {
  RunConfig config;
  config.parallel.data = 3;
  config.parallel.tensor = 2;
  config.restart = RestartConfig{2, 1.0};
  return config;
}

RunConfig elastic(int min_data) {
  RunConfig config = restarting();
  config.elastic = ElasticConfig{min_data, 3};
  config.full_data = 3;
  return config;
}

AttemptSeries series_of(const RunConfig& config, std::uint64_t newest_checkpoint = 0) {
  return {config, newest_checkpoint, kUserError, "run/checkpoints/rescue"};
}

/// Rank 1, of replica 0, was killed; the others ended with an error.
AttemptSeries::Failure kill_of_a_rank(std::uint64_t newest_checkpoint,
                                      std::optional<std::uint64_t> written = std::nullopt, int replicas = 3) {
  std::vector<ExitStatus> statuses(static_cast<std::size_t>(2 * replicas), ExitStatus{.code = 1, .signal = 0});
  statuses[1] = {.code = 0, .signal = SIGKILL};
  return {"rank 1 was killed", statuses[1], statuses, newest_checkpoint, written};
}

TEST(AttemptSeries, PausesDoubleUntilTheAttemptsAreUsedUp) {
  const RunConfig config = restarting();
  AttemptSeries attempts = series_of(config);
  EXPECT_EQ(attempts.ranks(), 6);
  EXPECT_EQ(attempts.after(kill_of_a_rank(0)).pause, milliseconds(1000));
  const AttemptSeries::Decision second = attempts.after(kill_of_a_rank(0));
  EXPECT_EQ(second.pause, milliseconds(2000));
  EXPECT_THAT(second.problems, ElementsAre("rank 1 was killed; attempt 3 of 3 begins in 2000 ms"));
  const AttemptSeries::Decision last = attempts.after(kill_of_a_rank(0));
  EXPECT_FALSE(last.pause);
  EXPECT_THAT(last.problems, IsEmpty());
}

TEST(AttemptSeries, ARunWithoutRestartHasOneAttempt) {
  RunConfig config = restarting();
  config.restart.reset();
  EXPECT_FALSE(series_of(config).after(kill_of_a_rank(0)).pause);
}

TEST(AttemptSeries, ANewCheckpointBeginsTheCountOfFailuresAnew) {
  const RunConfig config = restarting();
  AttemptSeries attempts = series_of(config, 10);
  attempts.after(kill_of_a_rank(10));
  EXPECT_EQ(attempts.after(kill_of_a_rank(20)).pause, milliseconds(1000));
  EXPECT_EQ(attempts.after(kill_of_a_rank(20)).pause, milliseconds(2000));
  EXPECT_FALSE(attempts.after(kill_of_a_rank(20)).pause);
}

TEST(AttemptSeries, AMistakeOfTheUserIsNotTriedAgain) {
  const RunConfig config = restarting();
  AttemptSeries attempts = series_of(config);
  AttemptSeries::Failure failure = kill_of_a_rank(0);
  failure.status = {.code = kUserError, .signal = 0};
  const AttemptSeries::Decision decision = attempts.after(failure);
  EXPECT_FALSE(decision.pause);
  EXPECT_THAT(decision.problems, ElementsAre(HasSubstr("no further attempt")));
  failure.status = {.code = kUserError, .signal = SIGKILL};  // the code of a killed rank says nothing
  EXPECT_TRUE(series_of(config).after(failure).pause);
}

TEST(AttemptSeries, AnElasticRunGoesOnWithOneReplicaFewerDownToItsLeast) {
  const RunConfig config = elastic(2);
  AttemptSeries attempts = series_of(config, 5);
  EXPECT_THAT(attempts.after(kill_of_a_rank(5)).problems,
              ElementsAre(HasSubstr("attempt 2 of 3, with data 2, begins")));
  EXPECT_EQ(attempts.replicas(), 2);
  EXPECT_EQ(attempts.ranks(), 4);
  attempts.after(kill_of_a_rank(7, std::nullopt, 2));
  EXPECT_EQ(attempts.replicas(), 2);
}

TEST(AttemptSeries, WithoutACheckpointAllReplicasBeginAgain) {
  const RunConfig config = elastic(1);
  AttemptSeries attempts = series_of(config);
  EXPECT_THAT(attempts.after(kill_of_a_rank(0)).problems, ElementsAre(HasSubstr("with data 3")));
  EXPECT_EQ(attempts.replicas(), 3);
}

TEST(AttemptSeries, RanksThatEndForMoreReplicasAreStartedWithAllOfThem) {
  const RunConfig config = elastic(1);
  AttemptSeries attempts = series_of(config, 5);
  attempts.after(kill_of_a_rank(5));
  EXPECT_FALSE(attempts.goes_on(/*is_over=*/true));
  EXPECT_EQ(attempts.replicas(), 2);
  EXPECT_TRUE(attempts.goes_on(/*is_over=*/false));
  EXPECT_EQ(attempts.replicas(), 3);
  EXPECT_FALSE(attempts.goes_on(/*is_over=*/false)) << "an attempt with all replicas ended by itself";
}

TEST(AttemptSeries, StepsThatNoReplicaCouldLeaveAreCountedAndReported) {
  const RunConfig config = elastic(1);
  AttemptSeries attempts = series_of(config, 5);
  EXPECT_THAT(attempts.after(kill_of_a_rank(5, 5)).problems, ElementsAre(HasSubstr("begins in")))
      << "the last written step is the checkpoint's";
  EXPECT_EQ(attempts.states_not_left(), 0U);
  EXPECT_THAT(attempts.after(kill_of_a_rank(5, 8, 2)).problems,
              ElementsAre("no replica has left its state in run/checkpoints/rescue: steps 6 to 8 are done again",
                          HasSubstr("begins in")));
  EXPECT_EQ(attempts.states_not_left(), 1U);
}

TEST(AttemptSeries, OneReplicaOrShardsOfTheStateLeaveNothingToReport) {
  RunConfig config = elastic(1);
  AttemptSeries attempts = series_of(config, 5);
  attempts.after(kill_of_a_rank(5));
  attempts.after(kill_of_a_rank(6, std::nullopt, 2));
  EXPECT_EQ(attempts.replicas(), 1);
  attempts.after(kill_of_a_rank(6, 9, 1));
  EXPECT_EQ(attempts.states_not_left(), 0U) << "the only replica died";
  config.sharding.zero = 1;
  AttemptSeries sharded = series_of(config, 5);
  sharded.after(kill_of_a_rank(5, 9));
  EXPECT_EQ(sharded.states_not_left(), 0U);
}

}  // namespace
}  // namespace droptest::experiments::attempt_series_test
