// SPDX-License-Identifier: Apache-2.0
// Schedules of pipelines: orders, makespans, memory, messages, files. tests/vectors/pipeline/ has the orders that the
// classes of torch.distributed.pipelining.schedules (torch 2.9.1) make for the ranks, chunks and micro-batches in the
// files' names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "models/pipeline/pipeline_program.h"
#include "models/pipeline/schedule.h"
#include "models/pipeline/schedule_csv.h"
#include "models/pipeline/schedule_timing.h"
#include "sim/error.h"

namespace droptest::models::pipeline_schedule_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string vector_text(const std::string& name) {
  std::ifstream file(std::string(DROPTEST_VECTORS) + "/pipeline/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

PipelineSchedule torch_schedule(const std::string& name) { return schedule_from_csv(vector_text(name), name); }

/// Rows as text, "0F0 0F1 ...".
std::vector<std::string> rows(const PipelineSchedule& schedule) {
  std::vector<std::string> texts;
  for (const auto& row : schedule.ranks) {
    std::string text;
    for (const Action& action : row) text += (text.empty() ? "" : " ") + action.text();
    texts.push_back(text);
  }
  return texts;
}

/// Whole backward passes take two units, and a chunk its share of one.
double makespan(ScheduleKind kind, int ranks, int chunks, int micro_batches) {
  const double unit = 1.0 / chunks;
  return time_schedule(make_schedule(kind, ranks, chunks, micro_batches), {unit, unit, unit}).makespan();
}

// Bubbles in units of a third of a micro-batch's work: (P - 1) 3 for GPipe and 1F1B, 1/v of that interleaved.
TEST(PipelineSchedule, MakespansAreThePublishedOnes) {
  using enum ScheduleKind;
  for (const ScheduleKind kind : {kGpipe, kOneForwardOneBackward}) {
    EXPECT_EQ(makespan(kind, 2, 1, 4), 15);
    EXPECT_EQ(makespan(kind, 4, 1, 4), 21);
    EXPECT_EQ(makespan(kind, 4, 1, 8), 33);
    EXPECT_EQ(makespan(kind, 8, 1, 16), 69);
    EXPECT_EQ(makespan(kind, 4, 1, 2), 15);
  }
  for (const ScheduleKind kind : {kInterleaved, kRoundRobin}) {
    EXPECT_DOUBLE_EQ(makespan(kind, 2, 2, 4), 13.5);
    EXPECT_DOUBLE_EQ(makespan(kind, 4, 2, 4), 16.5);
    EXPECT_DOUBLE_EQ(makespan(kind, 4, 2, 8), 28.5);
    EXPECT_DOUBLE_EQ(makespan(kind, 8, 2, 16), 58.5);
  }
  EXPECT_EQ(makespan(kZeroBubble, 2, 1, 4), 13);
  EXPECT_EQ(makespan(kZeroBubble, 4, 1, 8), 27);
  EXPECT_EQ(makespan(kZeroBubble, 8, 1, 16), 55);
  EXPECT_DOUBLE_EQ(makespan(kZeroBubble, 4, 2, 8), 25.5);
  EXPECT_DOUBLE_EQ(time_schedule(make_schedule(kOneForwardOneBackward, 4, 1, 8), {}).bubble_share(), 3.0 / 11);
}

TEST(PipelineSchedule, PeaksOfMicroBatchesInFlight) {
  using enum ScheduleKind;
  const auto of = [](ScheduleKind kind, int chunks, int micro_batches) {
    return peaks(make_schedule(kind, 4, chunks, micro_batches));
  };
  EXPECT_THAT(of(kGpipe, 1, 8), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(of(kOneForwardOneBackward, 1, 8), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(of(kOneForwardOneBackward, 1, 2), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(of(kInterleaved, 2, 8), ElementsAre(11, 9, 7, 5));
  EXPECT_THAT(of(kInterleaved, 2, 4), ElementsAre(8, 8, 7, 5));
  EXPECT_THAT(of(kZeroBubble, 1, 8), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(of(kZeroBubble, 2, 8), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(of(kRoundRobin, 2, 8), ElementsAre(16, 16, 16, 16));
}

TEST(PipelineSchedule, AllThatAreMadeAreValidAndRunEvenIfSendsWait) {
  int made = 0;
  int refused = 0;
  for (const ScheduleKindName& kind : schedule_kinds()) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int chunks = 1; chunks <= 4; ++chunks) {
        for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
          SCOPED_TRACE(std::string(kind.name) + " " + std::to_string(ranks) + " x " + std::to_string(chunks) + ", " +
                       std::to_string(micro_batches) + " micro-batches");
          PipelineSchedule schedule;
          try {
            schedule = make_schedule(kind.kind, ranks, chunks, micro_batches);
          } catch (const ConfigError&) {
            ++refused;
            continue;
          }
          ++made;
          ASSERT_NO_THROW(validate(schedule));
          ASSERT_EQ(schedule.stages(), ranks * chunks);
          ASSERT_EQ(schedule.micro_batches(), micro_batches);
          const PipelineProgram program = make_program(schedule);
          ASSERT_NO_THROW(validate(program));
          for (const int slots : program.slots) ASSERT_LE(slots, micro_batches);
        }
      }
    }
  }
  // Refused: 3 x 8 x 16 times several chunks of gpipe and of 1f1b; and micro-batches that rounds do not divide, for two
  // schedules, 4 numbers of chunks, and 22 pairs of ranks and micro-batches.
  EXPECT_EQ(refused, 2 * 3 * 8 * 16 + 2 * 4 * 22);
  EXPECT_EQ(made, 5 * 8 * 4 * 16 - refused);
}

TEST(PipelineSchedule, OrdersAreTorchs) {
  using enum ScheduleKind;
  const auto expect = [](const char* name, const PipelineSchedule& schedule) {
    EXPECT_EQ(rows(torch_schedule(name)), rows(schedule)) << name;
  };
  expect("interleaved_4x2x8.csv", make_schedule(kInterleaved, 4, 2, 8));
  expect("interleaved_4x2x10.csv", make_schedule(kInterleaved, 4, 2, 10));  // two rounds of five
  expect("zero_bubble_2x1x4.csv", make_schedule(kZeroBubble, 2, 1, 4));
  expect("zero_bubble_4x2x8.csv", make_schedule(kZeroBubble, 4, 2, 8));
  // Torch's rows of 1F1B are the same but for its last rank's, which begins at micro-batch 1 and never computes 0.
  const PipelineSchedule torch = torch_schedule("1f1b_4x8.csv");
  const PipelineSchedule own = make_schedule(kOneForwardOneBackward, 4, 1, 8);
  for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(rows(torch)[r], rows(own)[r]);
  EXPECT_THAT(rows(own)[3], testing::StartsWith("3F0 3B0 3F1 3B1"));
  EXPECT_THAT([&] { validate(torch); },
              ThrowsMessage<ConfigError>(HasSubstr("rank 3: \"3B0\" comes before the forward pass")));
}

TEST(PipelineSchedule, OthersSchedulesAreTakenFromFiles) {
  for (const char* name : {"dualpipev_4x10.csv", "zbv_4x8.csv", "looped_bfs_2x2x4.csv"}) {
    SCOPED_TRACE(name);
    const PipelineSchedule schedule = torch_schedule(name);
    validate(schedule);
    validate(make_program(schedule));
    EXPECT_EQ(schedule_from_csv(csv_of(schedule), "again").ranks, schedule.ranks);
  }
  const PipelineSchedule dual = torch_schedule("dualpipev_4x10.csv");
  EXPECT_THAT(dual.rank_of_stage(), ElementsAre(0, 1, 2, 3, 3, 2, 1, 0));
  EXPECT_EQ(dual.micro_batches(), 10);
  EXPECT_THAT(csv_of(dual), HasSubstr("(0F7;7B3)OVERLAP_F_B"));
  // 2 P + 1 micro-batches of stages of half the size.
  EXPECT_THAT(peaks(dual), ElementsAre(9, 9, 9, 9));
}

TEST(PipelineSchedule, FilesShowWhenActionsBegin) {
  EXPECT_EQ(csv_of(make_schedule(ScheduleKind::kOneForwardOneBackward, 2, 1, 3)),
            "0F0,0F1,,,0B0,,0F2,0B1,,,0B2\n"
            ",1F0,1B0,,1F1,1B1,,1F2,1B2\n");
}

TEST(PipelineSchedule, WrongCellsAreNamed) {
  const auto read = [](const std::string& text) { return [text] { schedule_from_csv(text, "x.csv"); }; };
  const auto fails = [](const std::string& what) { return ThrowsMessage<ConfigError>(HasSubstr(what)); };
  EXPECT_THAT(read("0F0,0B0\n1F0,1X0\n"), fails("x.csv: line 2, cell 2: got \"1X0\", want stage, F, I, W or B"));
  EXPECT_THAT(read("F0"), fails("got \"F0\""));
  EXPECT_THAT(read("0F"), fails("got \"0F\""));
  EXPECT_THAT(read("0F0x"), fails("got \"0F0x\""));
  EXPECT_THAT(read("0F-1"), fails("got \"0F-1\""));
  EXPECT_THAT(read("0F99999999999"), fails("got \"0F99999999999\""));
  EXPECT_THAT(read("(0F0;0B0)"), fails("got \"(0F0;0B0)\""));
  EXPECT_THAT(read("(0F0)OVERLAP_F_B"), fails("got \"(0F0)OVERLAP_F_B\""));
  EXPECT_THAT(read("0F0,0SEND_F0"), fails("messages follow from these"));
  EXPECT_EQ(rows(schedule_from_csv(" 0F0 ,,\"0B0\"\r\n", "x")), std::vector<std::string>{"0F0 0B0"});
}

TEST(PipelineSchedule, WrongSchedulesAreRefusedWithRankAndAction) {
  const auto check = [](const std::string& text) { return [text] { validate(schedule_from_csv(text, "x")); }; };
  const auto fails = [](const std::string& what) { return ThrowsMessage<ConfigError>(HasSubstr(what)); };
  EXPECT_THAT(check("0F0,0F0,0B0\n"), fails("rank 0: \"0F0\" is there twice"));
  EXPECT_THAT(check("0F0,0B0,0B0\n"), fails("rank 0: \"0B0\" is there twice"));
  EXPECT_THAT(check("0F0,0B0,0W0\n"), fails("rank 0: \"0W0\" is there twice"));
  EXPECT_THAT(check("0B0,0F0\n"), fails("rank 0: \"0B0\" comes before the forward pass"));
  EXPECT_THAT(check("0F0,0W0,0I0\n"), fails("rank 0: \"0W0\" comes before the input's gradient"));
  EXPECT_THAT(check("0F0,0I0\n"), fails("rank 0: micro-batch 0 of 1 has no weight gradient on stage 0"));
  EXPECT_THAT(check("0F0\n"), fails("rank 0: micro-batch 0 of 1 has no backward pass on stage 0"));
  EXPECT_THAT(check("0F0,0B0,0F1,0B1\n1F0,1B0\n"), fails("rank 1: micro-batch 1 of 2 has no forward pass on stage 1"));
  EXPECT_THAT(check("0F0,0B0\n0F1,0B1\n"), fails("stage 0 is on rank 1 too, want each on one rank"));
  EXPECT_THAT(check("0F0,0B0\n2F0,2B0\n"), fails("no rank has stage 1 of 3"));
  EXPECT_THAT(check("0F0,0B0\n\n"), fails("rank 1: got no actions"));
  EXPECT_THAT(check(""), fails("got no ranks"));
  EXPECT_THAT(check("0F1999999999,0B1999999999\n"), fails("got 2 actions of 1 stages and 2000000000 micro-batches"));
  EXPECT_THAT(check("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"),
              fails("ranks wait for each other: rank 0 at \"0B0\", rank 1 at \"1F1\""));
}

TEST(PipelineSchedule, NumbersWithoutAScheduleAreRefused) {
  using enum ScheduleKind;
  const auto fails = [](const std::string& what) { return ThrowsMessage<ConfigError>(HasSubstr(what)); };
  EXPECT_THAT([] { make_schedule(kInterleaved, 4, 2, 9); },
              fails("\"interleaved\": got 9 micro-batches on 4 ranks, which 2 rounds do not divide, want for example 8 "
                    "or 10"));
  EXPECT_THAT([] { make_schedule(kGpipe, 4, 2, 8); },
              fails("\"gpipe\": got 2 chunks, want 1; several have \"round_robin\""));
  EXPECT_THAT([] { make_schedule(kOneForwardOneBackward, 4, 2, 8); }, fails("several have \"interleaved\""));
  EXPECT_THAT([] { make_schedule(kZeroBubble, 0, 1, 8); }, fails("got 0 ranks, want at least 1"));
  EXPECT_THAT([] { make_schedule(kZeroBubble, 1, 1, 0); }, fails("got 0 micro-batches"));
}

using StepKind = PipelineStep::Kind;

std::vector<std::string> texts(const std::vector<PipelineStep>& steps) {
  std::vector<std::string> all;
  for (const PipelineStep& step : steps) all.push_back(step.text() + " / " + std::to_string(step.slot));
  return all;
}

TEST(PipelineProgram, ReceivesStartAnActionAheadAndSlotsAreUsedAgain) {
  const PipelineProgram program = make_program(make_schedule(ScheduleKind::kOneForwardOneBackward, 2, 1, 3));
  EXPECT_THAT(texts(program.ranks[1]),
              ElementsAre("receive for 1F0 from rank 0 / 0", "receive for 1F1 from rank 0 / 1", "1F0 / 0", "1B0 / 0",
                          "send of 1B0 to rank 0 / 0", "1F1 / 1", "1B1 / 1", "receive for 1F2 from rank 0 / 0",
                          "send of 1B1 to rank 0 / 1", "1F2 / 0", "1B2 / 0", "send of 1B2 to rank 0 / 0"));
  EXPECT_THAT(program.slots, ElementsAre(2, 2));
}

// Rank 1 sends the gradient of micro-batch 0 at the time at which rank 0 begins the forward pass of micro-batch 4.
TEST(PipelineProgram, AReceiveTakesTheSlotOfAMessageThatIsSentAtItsTime) {
  const PipelineProgram program = make_program(schedule_from_csv(
      "0F0,0F1,0F2,0F3,0F4,0B0,0B1,0B2,0B3,0B4\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3,1F4,1B4\n", "early forward passes"));
  validate(program);
  EXPECT_THAT(program.slot_of[1], ElementsAre(0, 1, 2, 3, 0));
  EXPECT_THAT(program.slots, ElementsAre(5, 4));
}

// Chunk 1 of rank 0 follows chunk 0 of rank 0 in a V: results stay on the rank.
TEST(PipelineProgram, NeighboursOnOneRankSendNothing) {
  const PipelineProgram program = make_program(schedule_from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", "v"));
  validate(program);
  EXPECT_THAT(texts(program.ranks[1]),
              ElementsAre("receive for 1F0 from rank 0 / 0", "1F0 / 0", "2F0 / 0", "send of 2F0 to rank 0 / 0",
                          "receive for 2B0 from rank 0 / 0", "2B0 / 0", "1B0 / 0", "send of 1B0 to rank 0 / 0"));
}

// Each message of a stage's result comes with a message that is sent past the stage, from the rank with the stage's
// input.
TEST(PipelineProgram, InputsAreSentPastTheirStages) {
  const PipelineProgram three =
      make_program(make_schedule(ScheduleKind::kGpipe, 3, 1, 1), {.activations = true, .gradients = true});
  validate(three);
  EXPECT_THAT(texts(three.ranks[0]),
              ElementsAre("0F0 / 0", "send of 0F0 to rank 1 past stage 0 / 0", "send of 0F0 to rank 1 / 0",
                          "send of 0F0 to rank 2 past stage 1 / 0", "receive for 0B0 from rank 2 past stage 1 / 0",
                          "receive for 0B0 from rank 1 / 0", "0B0 / 0"));
  EXPECT_THAT(texts(three.ranks[2]),
              ElementsAre("receive for 2F0 from rank 0 past stage 1 / 0", "receive for 2F0 from rank 1 / 0", "2F0 / 0",
                          "2B0 / 0", "send of 2B0 to rank 1 past stage 2 / 0", "send of 2B0 to rank 1 / 0",
                          "send of 2B0 to rank 0 past stage 1 / 0"));

  // Stages 0 and 2 share a rank, so stage 0's result is there; only the end of a pipeline sends its input.
  const PipelineProgram chunks = make_program(make_schedule(ScheduleKind::kRoundRobin, 2, 2, 1), {.activations = true});
  validate(chunks);
  EXPECT_THAT(texts(chunks.ranks[0]),
              ElementsAre("0F0 / 0", "send of 0F0 to rank 1 past stage 0 / 0", "send of 0F0 to rank 1 / 0",
                          "receive for 2F0 from rank 1 / 0", "2F0 / 0", "send of 2F0 to rank 1 / 0",
                          "receive for 2B0 from rank 1 / 0", "2B0 / 0", "send of 2B0 to rank 1 / 0",
                          "receive for 0B0 from rank 1 / 0", "0B0 / 0"));
  EXPECT_TRUE(chunks.has_substitute({2, Action::Kind::kForward}));
  EXPECT_FALSE(chunks.has_substitute({0, Action::Kind::kForward}));
  EXPECT_FALSE(chunks.has_substitute({2, Action::Kind::kBackward}));

  // Results that stay on their rank cannot be lost.
  const PipelineProgram v = make_program(schedule_from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", "v"),
                                         {.activations = true, .gradients = true});
  validate(v);
  EXPECT_FALSE(v.has_substitute({2, Action::Kind::kForward}));
  EXPECT_TRUE(v.has_substitute({3, Action::Kind::kForward}));
}

/// The program of 1F1B for two ranks and three micro-batches, with one change.
template <class Change>
auto changed(Change change) {
  return [change] {
    PipelineProgram program = make_program(make_schedule(ScheduleKind::kOneForwardOneBackward, 2, 1, 3));
    change(program);
    validate(program);
  };
}

TEST(PipelineProgram, WrongProgramsAreRefusedWithRankActionAndPeer) {
  const auto fails = [](const std::string& what) { return ThrowsMessage<ConfigError>(HasSubstr(what)); };
  // Both ranks send before they start to receive.
  EXPECT_THAT(changed([](PipelineProgram& p) {
                const auto late = std::find_if(p.ranks[0].begin(), p.ranks[0].end(),
                                               [](const PipelineStep& s) { return s.kind == StepKind::kReceive; });
                std::rotate(late, late + 1, p.ranks[0].end());
              }),
              fails("ranks wait for each other: rank 0 at \"0B0\", rank 1 at \"send of 1B0 to rank 0\""));
  EXPECT_THAT(changed([](PipelineProgram& p) {
                std::vector<PipelineStep*> receives;
                for (PipelineStep& step : p.ranks[1]) {
                  if (step.kind == StepKind::kReceive) receives.push_back(&step);
                }
                std::swap(*receives[0], *receives[1]);
              }),
              fails("rank 0: \"send of 0F0 to rank 1\": rank 1 expects the input of \"1F1\" instead"));
  EXPECT_THAT(changed([](PipelineProgram& p) {
                for (PipelineStep& step : p.ranks[1]) {
                  if (step.kind == StepKind::kReceive) step.kind = StepKind::kSend;
                }
              }),
              fails("rank 1: \"send of 1F0 to rank 0\": no stage needs this result"));
  EXPECT_THAT(changed([](PipelineProgram& p) {
                for (PipelineStep& step : p.ranks[1]) step.slot = 0;
              }),
              fails("rank 1: \"receive for 1F1 from rank 0\": slot 0 of the stage still has micro-batch 0"));
  EXPECT_THAT(
      ([] {
        PipelineProgram p = make_program(make_schedule(ScheduleKind::kGpipe, 2, 1, 1), {.activations = true});
        std::swap(p.ranks[0][1], p.ranks[0][2]);
        validate(p);
      }),
      fails("rank 0: \"send of 0F0 to rank 1\": rank 1 expects the input of \"1F0\" from before the last stage"));
  EXPECT_THAT(changed([](PipelineProgram& p) { p.slots[1] = 1; }),
              fails("rank 1: \"receive for 1F1 from rank 0\": got slot 1 of 1"));
  // The gradients of weights still need the saved activations of micro-batch 0.
  PipelineProgram split = make_program(schedule_from_csv("0F0,0I0,0F1,0W0,0B1\n", "split"));
  validate(split);
  for (PipelineStep& step : split.ranks[0]) step.slot = 0;
  EXPECT_THAT([&split] { validate(split); }, fails("rank 0: \"0F1\": slot 0 of the stage still has micro-batch 0"));
}

}  // namespace
}  // namespace droptest::models::pipeline_schedule_test
