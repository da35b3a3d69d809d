// SPDX-License-Identifier: Apache-2.0
// The values of a pipeline's tied embedding, which its owner sends to the first stage after each update.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "sim/error.h"
#include "tests/models/counting_clock.h"
#include "tests/models/tiny_pipeline.h"

namespace droptest::models::tied_embedding_test {
namespace {

using testing::HasSubstr;

/// The error of a call; "" without one.
template <class Call>
std::string check_error_of(const Call& call) {
  try {
    call();
  } catch (const CheckError& error) {
    return error.what();
  }
  return "";
}

// Both ranks have the error before they send anything.
TEST(TiedEmbedding, AnUpdateWithoutItsNewValuesOnTheFirstStageIsAnErrorOfWhatFollows) {
  const PipelineSchedule schedule = make_schedule(ScheduleKind::kOneForwardOneBackward, 2, 1, 3);
  comm::run_ranks(2, kTestTimeout, [&](comm::Communicator& world) {
    TinyPipeline pipeline(schedule, 2, world);
    pipeline.passes();
    pipeline.update();
    const char* const want = "without spread_embedding()";
    EXPECT_THAT(check_error_of([&] { pipeline.passes(); }), HasSubstr(want));
    EXPECT_THAT(check_error_of([&] { (void)pipeline.evaluate(); }), HasSubstr(want));
    pipeline.spread_embedding();
    EXPECT_EQ(check_error_of([&] { (void)pipeline.evaluate(); }), "");
    EXPECT_EQ(check_error_of([&] { pipeline.passes(); }), "");
  });
}

TEST(TiedEmbedding, RanksWithoutTheEmbeddingAndARankWithBothItsUsesNeedNoMessage) {
  for (const int ranks : {1, 3}) {
    const PipelineSchedule schedule = make_schedule(ScheduleKind::kOneForwardOneBackward, ranks, 1, 3);
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& world) {
      TinyPipeline pipeline(schedule, 3, world);
      pipeline.passes();
      pipeline.update();
      if (ranks == 1 || world.rank() != 1) pipeline.spread_embedding();
      EXPECT_EQ(check_error_of([&] { pipeline.passes(); }), "");
    });
  }
}

TEST(TiedEmbedding, TheTimeOfItsMessagesIsThatOfReductions) {
  constexpr auto kReductions = static_cast<std::size_t>(Phase::kReductions);
  const PipelineSchedule schedule = make_schedule(ScheduleKind::kOneForwardOneBackward, 2, 1, 3);
  comm::run_ranks(2, kTestTimeout, [&](comm::Communicator& world) {
    const CountingClock clock;
    PhaseTimes times(kPhasesAndRest, kPhaseNames.size(), clock);
    TinyPipeline pipeline(schedule, 2, world, {}, &times);
    pipeline.passes([&](int at) {
      if (at == pipeline.places() - 2) (void)times.take();
    });
    EXPECT_GT(times.take()[kReductions], 0) << "of the gradients";
    pipeline.update();
    (void)times.take();
    pipeline.spread_embedding();
    EXPECT_GT(times.take()[kReductions], 0) << "of the values";
  });
}

}  // namespace
}  // namespace droptest::models::tied_embedding_test
