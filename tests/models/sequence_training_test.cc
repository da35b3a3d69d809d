// SPDX-License-Identifier: Apache-2.0
// A model whose ranks share sequences is the model that one rank trains.
#include <gtest/gtest.h>

#include <vector>

#include "models/kernels/cross_entropy.h"
#include "tests/models/parallel_training.h"

namespace droptest::models {
namespace {

constexpr auto kZigzag = SequenceLayout::Order::kZigzag;

/// Four blocks of width 32 with these heads, over these ranks.
Gpt2Config over(const SequenceLayout& layout, int heads = 4) {
  Gpt2Config config{4, 32, heads, 12, 97};
  config.attention.sequence = layout;
  return config;
}

Gpt2Config dilated(int ring, BranchGradient gradient = BranchGradient::kExact) {
  Gpt2Config config = over({{1, ring}});
  config.attention.branches = {{3, 1}, {6, 2}, {9, 4}};
  config.attention.gradient = gradient;
  return config;
}

const SequenceLayout kUlysses2{{2, 1}};
const SequenceLayout kUlysses4{{4, 1}};
const SequenceLayout kRing2{{1, 2}};
const SequenceLayout kRing3{{1, 3}};
const SequenceLayout kZigzag2{{1, 2}, kZigzag};
const SequenceLayout kZigzag3{{1, 3}, kZigzag};
const SequenceLayout kBoth{{2, 2}};
const SequenceLayout kBothZigzag{{2, 2}, kZigzag};

SlotOptions again(Recompute recompute) { return {.recompute = {recompute}}; }

// Sequences have 9 tokens: no number of ranks but 3 divides them.
const std::vector<TrainingCase> kCases = {
    {"ulysses4", {.config = over(kUlysses4), .sequences = 3}},
    {"ring3", {.config = over(kRing3), .sequences = 2}},
    {"zigzag3", {.config = over(kZigzag3), .sequences = 2}},
    {"ulysses2_ring2", {.config = over(kBoth), .sequences = 2}},
    {"ulysses2_zigzag2", {.config = over(kBothZigzag), .sequences = 2}},
    {"heads5_ulysses2", {.config = {2, 40, 5, 12, 97, {kUlysses2}}}},
    {"two_tokens_ulysses4", {.config = over(kUlysses4), .sequences = 2, .length = 2}},
    {"one_token_ring3", {.config = over(kRing3), .length = 1}},
    {"two_tokens_zigzag3", {.config = over(kZigzag3), .sequences = 2, .length = 2}},
    {"ulysses2_data2", {.config = over(kUlysses2), .data = 2, .micro_batches = 2}},
    {"zigzag2_tensor2", {.config = over(kZigzag2), .tensor = 2, .sequences = 2}},
    {"ulysses2_tensor2_data2", {.config = over(kUlysses2), .data = 2, .tensor = 2}},
    {"ring2_pipeline2", {.config = over(kRing2), .pipeline = 2, .micro_batches = 3}},
    {"zigzag2_zero_bubble",
     {.config = over(kZigzag2), .pipeline = 2, .chunks = 2, .kind = ScheduleKind::kZeroBubble, .micro_batches = 2}},
    {"ulysses2_data2_zero1", {.config = over(kUlysses2), .data = 2, .sharding = small_buckets(1)}},
    {"ring2_data2_zero2", {.config = over(kRing2), .data = 2, .micro_batches = 2, .sharding = small_buckets(2)}},
    {"zigzag3_zero3", {.config = over(kZigzag3), .micro_batches = 2, .sharding = small_buckets(3)}},
    {"ulysses2_data2_ignored", {.config = over(kUlysses2), .data = 2, .micro_batches = 2, .ignores = true}},
    {"ring3_selective", {.config = over(kRing3), .memory = again(Recompute::kSelective)}},
    {"ulysses2_tensor2_full", {.config = over(kUlysses2), .tensor = 2, .memory = again(Recompute::kBlock)}},
    {"dilated", {.config = dilated(1), .sequences = 2}},
    {"dilated_ring3", {.config = dilated(3), .sequences = 2}},
    {"dilated_stopped_ring2_tensor2_data2_zero1",
     {.config = dilated(2, BranchGradient::kStopped), .data = 2, .tensor = 2, .sharding = small_buckets(1)}},
    {"dilated_ring2_pipeline2", {.config = dilated(2), .pipeline = 2, .micro_batches = 2}},
};

class SequenceParallelism : public testing::TestWithParam<TrainingCase> {};

TEST_P(SequenceParallelism, EqualsOneRankInDouble) { expect_equal_to_one_rank<double>(GetParam().run, 1e-11); }

TEST_P(SequenceParallelism, EqualsOneRankInDoubleWithinDocuments) {
  Training run = GetParam().run;
  run.steps = 2;
  run.documents = true;
  run.config.attention.within = AttentionOptions::Within::kDocument;
  expect_equal_to_one_rank<double>(run, 1e-11);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SequenceParallelism, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SequenceTraining, TwentyStepsEqualThoseOfOneRank) {
  for (const SequenceLayout& layout : {kUlysses2, kRing3, kZigzag2}) {
    const Training run{.config = over(layout), .sequences = 2, .steps = 20};
    expect_equal_to_one_rank<double>(run, 1e-10);
    expect_equal_to_one_rank<float>(run, 1e-4);
  }
}

TEST(SequenceTraining, OneBranchOfAllTokensIsDenseAttention) {
  Training dense{.sequences = 2};
  Training one_branch = dense;
  one_branch.config.attention.branches = {{12, 1}};
  const TrainingResult want = train<double>(dense);
  const TrainingResult got = train<double>(one_branch);
  for (std::size_t s = 0; s < want.steps.size(); ++s) EXPECT_NEAR(got.steps[s].loss / want.steps[s].loss, 1, 1e-12);
  for (const auto& [name, values] : want.of_replica[0]) {
    EXPECT_LE(relative_difference(got.of_replica[0].at(name), values), 1e-11) << name;
  }
}

}  // namespace
}  // namespace droptest::models
