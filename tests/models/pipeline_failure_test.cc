// SPDX-License-Identifier: Apache-2.0
// If a rank of a pipeline fails at any place of a training step, every other rank ends and names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "sim/error.h"
#include "tests/models/tiny_pipeline.h"

namespace droptest::models::pipeline_failure_test {
namespace {

using testing::HasSubstr;

int places_of(const PipelineSchedule& schedule, int rank) {
  return static_cast<int>(make_program(schedule).ranks[static_cast<std::size_t>(rank)].size()) + 2;
}

/// The errors of all ranks in a training step; "" of a rank without one, and of the culprit.
std::vector<std::string> errors_of(const PipelineSchedule& schedule, int culprit, int place) {
  std::vector<std::string> errors(schedule.ranks.size());
  const auto body = [&](comm::Communicator& world) {
    TinyPipeline pipeline(schedule, schedule.stages(), world);
    try {
      pipeline.step([&](int at) {
        if (world.rank() == culprit && at == place) throw std::domain_error("the test's fault");
      });
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(world.rank())] = error.what();
      throw;
    }
  };
  // The first failure is the culprit's own.
  EXPECT_THROW(comm::run_ranks(static_cast<int>(schedule.ranks.size()), kTestTimeout, body), std::domain_error);
  return errors;
}

TEST(PipelineFailure, OfAnyRankAtAnyPlaceIsNamedByAllOthers) {
  for (const PipelineSchedule& schedule :
       {failing_schedule(), make_schedule(ScheduleKind::kZeroBubble, 2, 2, 4),
        make_schedule(ScheduleKind::kInterleaved, 4, 2, 4), make_schedule(ScheduleKind::kGpipe, 2, 1, 3)}) {
    const auto ranks = static_cast<int>(schedule.ranks.size());
    for (int culprit = 0; culprit < ranks; ++culprit) {
      for (int place = 0; place < places_of(schedule, culprit); ++place) {
        SCOPED_TRACE("rank " + std::to_string(culprit) + " of " + std::to_string(ranks) + " fails at place " +
                     std::to_string(place));
        const std::vector<std::string> errors = errors_of(schedule, culprit, place);
        for (int r = 0; r < ranks; ++r) {
          if (r == culprit) continue;
          EXPECT_THAT(errors[static_cast<std::size_t>(r)], HasSubstr("rank " + std::to_string(culprit) + " failed: "));
        }
      }
    }
  }
}

}  // namespace
}  // namespace droptest::models::pipeline_failure_test
