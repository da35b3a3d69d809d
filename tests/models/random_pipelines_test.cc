// SPDX-License-Identifier: Apache-2.0
// Any valid schedule runs to its end, and gives the gradients of one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "models/pipeline/pipeline_program.h"
#include "models/pipeline/schedule_csv.h"
#include "models/pipeline/schedule_timing.h"
#include "tests/models/guarding_communicator.h"
#include "tests/models/random_schedule.h"
#include "tests/models/tiny_pipeline.h"
#include "tests/sanitizers.h"

namespace droptest::models::random_pipelines_test {
namespace {

constexpr int kSchedules = kSanitized ? 200 : 1000;
const char* const kTokens = "wte.weight";

struct Gradients {
  Tensors tensors;
  double losses = 0;
  std::vector<std::string> violations;  ///< GuardingCommunicator::violations of all ranks
};

Gradients gradients_of(const PipelineSchedule& schedule, int layers, const SentPast& sent_past = {}) {
  Gradients result;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(schedule.ranks.size()), kTestTimeout, [&](comm::Communicator& world) {
    GuardingCommunicator guarding(world);
    TinyPipeline pipeline(schedule, layers, guarding, sent_past);
    pipeline.passes();
    pipeline.passes();  // a second step finds all as the first one did
    const double losses = pipeline.losses();
    const std::lock_guard lock(mutex);
    pipeline.add_gradients_to(result.tensors);
    result.losses += losses;
    result.violations.insert(result.violations.end(), guarding.violations.begin(), guarding.violations.end());
  });
  return result;
}

/// The actions of all ranks on one rank, in an order in which the schedule takes them. It sends no messages.
PipelineSchedule on_one_rank(const PipelineSchedule& schedule) {
  std::vector<TimedAction> all;
  for (const auto& row : time_schedule(schedule, {}).ranks) all.insert(all.end(), row.begin(), row.end());
  std::ranges::stable_sort(all, {}, &TimedAction::begin);
  PipelineSchedule one;
  one.ranks.emplace_back();
  for (const TimedAction& timed : all) one.ranks.front().push_back(timed.action);
  return one;
}

// The order of the passes determines the order of sums, so one rank with the same passes has the same bits. The
// exception is the tied embedding: if its two ends are on different ranks, its gradients are first summed at each end.
// One rank without stages has another order of sums, and so differs by the rounding of doubles.
TEST(RandomPipelines, RunToTheirEndWithTheGradientsOfOneRank) {
  std::mt19937 random(20250607);
  std::map<std::pair<int, int>, Gradients> of_whole_models;
  for (int i = 0; i < kSchedules; ++i) {
    const PipelineSchedule schedule = random_schedule(random);
    SCOPED_TRACE(std::to_string(i) + ":\n" + csv_of(schedule));
    ASSERT_NO_THROW(validate(schedule));
    // Inputs that are sent past stages replace nothing here, because nothing is lost.
    const SentPast sent_past{i % 4 == 1 || i % 4 == 3, i % 4 >= 2};
    ASSERT_NO_THROW(validate(make_program(schedule)));
    ASSERT_NO_THROW(validate(make_program(schedule, sent_past)));
    const int stages = schedule.stages();
    const Gradients got = gradients_of(schedule, stages, sent_past);
    ASSERT_TRUE(got.violations.empty()) << got.violations.front();

    const Gradients same_passes = gradients_of(on_one_rank(schedule), stages);
    const std::vector<int> rank_of = schedule.rank_of_stage();
    ASSERT_EQ(got.losses, same_passes.losses);
    for (const auto& [name, gradient] : same_passes.tensors) {
      if (name == kTokens && rank_of.front() != rank_of.back()) continue;
      ASSERT_EQ(got.tensors.at(name), gradient) << name;
    }

    const auto [whole, is_new] = of_whole_models.try_emplace({stages, schedule.micro_batches()});
    if (is_new) {
      whole->second =
          gradients_of(make_schedule(ScheduleKind::kOneForwardOneBackward, 1, 1, schedule.micro_batches()), stages);
    }
    ASSERT_NEAR(got.losses / whole->second.losses, 1, 1e-12);
    for (const auto& [name, gradient] : whole->second.tensors) {
      ASSERT_LE(relative_difference(got.tensors.at(name), gradient), 1e-12) << name;
    }
  }
}

// Rank 1 has the stages 1 and 2. The gradient of stage 1 may still be being sent to rank 0 when stage 2 computes that
// of the next micro-batch in the same slot.
TEST(PipelineBuffers, AGradientThatIsBeingSentIsNotOverwrittenByTheNextStageOnTheRank) {
  const PipelineSchedule schedule =
      schedule_from_csv("0F0,0B0,0F1,0B1\n1F0,2F0,2B0,1B0,1F1,2F1,2B1,1B1\n", "two stages on rank 1");
  ASSERT_EQ(make_program(schedule).slots[1], 1);
  EXPECT_THAT(gradients_of(schedule, schedule.stages()).violations, testing::IsEmpty());
}

}  // namespace
}  // namespace droptest::models::random_pipelines_test
