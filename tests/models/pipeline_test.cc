// SPDX-License-Identifier: Apache-2.0
// A model with stages on several ranks equals the model that one rank trains, with any schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/models/parallel_training.h"

namespace droptest::models::pipeline_test {
namespace {

using enum ScheduleKind;

const std::vector<TrainingCase> kCases = {
    {"gpipe2", {.pipeline = 2, .kind = kGpipe, .micro_batches = 4}},
    {"gpipe4", {.pipeline = 4, .kind = kGpipe, .micro_batches = 4}},
    {"one_forward_one_backward2", {.pipeline = 2, .micro_batches = 4}},
    {"one_forward_one_backward4", {.pipeline = 4, .micro_batches = 6}},
    {"fewer_micro_batches_than_ranks", {.pipeline = 4, .micro_batches = 2}},
    {"interleaved2", {.pipeline = 2, .chunks = 2, .kind = kInterleaved, .micro_batches = 4}},
    {"interleaved4",
     {.config = {8, 32, 4, 12, 97}, .pipeline = 4, .chunks = 2, .kind = kInterleaved, .micro_batches = 4}},
    {"zero_bubble2", {.pipeline = 2, .kind = kZeroBubble, .micro_batches = 4}},
    {"zero_bubble4", {.pipeline = 4, .kind = kZeroBubble, .micro_batches = 8}},
    {"zero_bubble_chunks", {.pipeline = 2, .chunks = 2, .kind = kZeroBubble, .micro_batches = 4}},
    {"round_robin2", {.pipeline = 2, .chunks = 2, .kind = kRoundRobin, .micro_batches = 4}},
    {"chunks_on_one_rank", {.chunks = 4, .kind = kInterleaved, .micro_batches = 4}},
    {"uneven_chunks_on_one_rank",
     {.config = {5, 32, 4, 12, 97}, .chunks = 3, .kind = kInterleaved, .micro_batches = 4, .layers = {1, 3, 1}}},
    {"weight_gradients_apart_on_one_rank", {.chunks = 2, .kind = kZeroBubble, .micro_batches = 4}},
    {"uneven", {.config = {5, 32, 4, 12, 97}, .pipeline = 3, .micro_batches = 4, .layers = {1, 3, 1}}},
    {"uneven_zero_bubble",
     {.config = {5, 32, 4, 12, 97}, .pipeline = 2, .kind = kZeroBubble, .micro_batches = 4, .layers = {4, 1}}},
    {"data2", {.pipeline = 2, .data = 2, .micro_batches = 2, .sharding = small_buckets(0)}},
    {"data2_zero1", {.pipeline = 2, .data = 2, .micro_batches = 2, .sharding = small_buckets(1)}},
    {"data2_chunks_zero1",
     {.pipeline = 2, .chunks = 2, .kind = kZeroBubble, .data = 2, .micro_batches = 2, .sharding = small_buckets(1)}},
    {"tensor2", {.pipeline = 2, .tensor = 2, .micro_batches = 4}},
    {"data2_tensor2_zero1", {.pipeline = 2, .data = 2, .tensor = 2, .micro_batches = 2, .sharding = small_buckets(1)}},
    {"ignored_targets", {.pipeline = 2, .data = 2, .micro_batches = 3, .sharding = small_buckets(0), .ignores = true}},
    {"dual_pipe_v", {.config = {8, 32, 4, 12, 97}, .pipeline = 4, .micro_batches = 10, .file = "dualpipev_4x10.csv"}},
    {"zero_bubble_v", {.config = {8, 32, 4, 12, 97}, .pipeline = 4, .micro_batches = 8, .file = "zbv_4x8.csv"}},
    {"torchs_looped_bfs", {.pipeline = 2, .micro_batches = 4, .file = "looped_bfs_2x2x4.csv"}},
};

class PipelineParallelism : public testing::TestWithParam<TrainingCase> {};

TEST_P(PipelineParallelism, EqualsOneRankInDouble) { expect_equal_to_one_rank<double>(GetParam().run, 1e-12); }

// AdamW divides by small second moments, and hides errors of scale; SGD does neither.
TEST_P(PipelineParallelism, EqualsOneRankInFloatWithSgd) {
  Training run = GetParam().run;
  run.optimizer = {.rule = OptimizerConfig::Rule::kSgd};
  expect_equal_to_one_rank<float>(run, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Layouts, PipelineParallelism, testing::ValuesIn(kCases),
                         [](const auto& item) { return std::string(item.param.name); });

/// Packets sent and lost in a class.
std::pair<std::uint64_t, std::uint64_t> packets(const TrainingResult& result, sim::TrafficClass of) {
  for (const comm::ClassStatistics& statistics : result.statistics) {
    if (statistics.traffic_class == of) return {statistics.total().packets, statistics.total().lost_packets};
  }
  return {0, 0};
}

// The stages are on the same ranks, so the order of the schedule changes neither sums nor fates.
TEST(PipelineSchedules, OfOnePlacementGiveTheSameBits) {
  for (const double loss_rate : {0.0, 0.2}) {
    SCOPED_TRACE(loss_rate);
    Training run{.pipeline = 2, .micro_batches = 6, .loss_rate = loss_rate};
    const TrainingResult want = train<float>(run);
    for (const ScheduleKind kind : {kGpipe, kZeroBubble}) {
      run.kind = kind;
      expect_equal_bits(train<float>(run), want);
    }
    Training chunks{.pipeline = 2, .chunks = 2, .kind = kInterleaved, .micro_batches = 4, .loss_rate = loss_rate};
    const TrainingResult want_chunks = train<float>(chunks);
    for (const ScheduleKind kind : {kRoundRobin, kZeroBubble}) {
      chunks.kind = kind;
      expect_equal_bits(train<float>(chunks), want_chunks);
    }
    if (loss_rate > 0) {
      EXPECT_NE(want.steps.back().loss, train<float>({.pipeline = 2, .micro_batches = 6}).steps.back().loss);
      // A message of 9 rows of 32 floats is one packet: one hop, six micro-batches, five steps.
      EXPECT_EQ(packets(want, sim::TrafficClass::kPpActivation).first, 30U);
      EXPECT_EQ(packets(want, sim::TrafficClass::kPpGradient).first, 30U);
      EXPECT_GT(packets(want, sim::TrafficClass::kPpActivation).second, 0U);
    }
  }
}

// Ordinals of a link and class must differ, or messages would lose the same packets.
TEST(PipelineSchedules, GiveEachMessageAPlaceOfItsOwn) {
  const TrainingResult got =
      train<float>({.pipeline = 2, .kind = kGpipe, .micro_batches = 3, .steps = 2, .records = true});
  std::vector<std::string> calls;
  std::vector<std::uint64_t> ordinals;
  for (std::size_t i = 0; i < got.calls.size(); ++i) {
    if (!got.ordinals[i]) continue;
    const bool is_forward = got.calls[i].find(".output.") != std::string::npos;
    EXPECT_THAT(got.calls[i], testing::HasSubstr(is_forward ? " pp_activation " : " pp_gradient "));
    calls.push_back(got.calls[i].substr(0, got.calls[i].find(" layer")));
    ordinals.push_back(*got.ordinals[i]);
  }
  EXPECT_THAT(calls, testing::ElementsAre(
                         "send stage.0.output.0", "send stage.0.output.1", "send stage.0.output.2",
                         "recv stage.1.input_gradient.0", "recv stage.1.input_gradient.1",
                         "recv stage.1.input_gradient.2", "send stage.0.output.0", "send stage.0.output.1",
                         "send stage.0.output.2", "recv stage.1.input_gradient.0", "recv stage.1.input_gradient.1",
                         "recv stage.1.input_gradient.2", "send stage.0.output.0"));  // the last one: an evaluation
  // The ordinal is the micro-batch, from 3 on in the second step; evaluations have separate ordinals.
  EXPECT_THAT(ordinals, testing::ElementsAre(0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 1U << 29U));
}

TEST(PipelineSchedules, HoldAsManyMicroBatchesAsTheyShould) {
  const auto of = [](const Training& run) {
    const TrainingResult got = train<float>(run);
    EXPECT_EQ(got.most_in_flight, peaks(schedule_of(run)));
    return got.most_in_flight;
  };
  EXPECT_THAT(of({.pipeline = 4, .kind = kGpipe, .micro_batches = 8, .steps = 2}), testing::ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(of({.pipeline = 4, .micro_batches = 8, .steps = 2}), testing::ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(of({.pipeline = 4, .kind = kZeroBubble, .micro_batches = 8, .steps = 2}),
              testing::ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(of({.config = {8, 32, 4, 12, 97},
                  .pipeline = 4,
                  .chunks = 2,
                  .kind = kInterleaved,
                  .micro_batches = 8,
                  .steps = 2}),
              testing::ElementsAre(11, 9, 7, 5));
}

TEST(TiedEmbedding, IsTheSameAtBothEndsOfAPipeline) {
  const TrainingResult got = train<double>({.pipeline = 3, .micro_batches = 4, .layers = {1, 2, 1}});
  EXPECT_FALSE(got.tokens[0].empty());
  EXPECT_TRUE(got.tokens[1].empty());
  EXPECT_EQ(got.tokens[0], got.tokens[2]);
}

}  // namespace
}  // namespace droptest::models::pipeline_test
