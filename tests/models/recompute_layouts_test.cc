// SPDX-License-Identifier: Apache-2.0
// Recomputed blocks have the same bits in every layout.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/models/parallel_training.h"
#include "tests/models/recompute_options.h"

namespace droptest::models::recompute_layouts_test {
namespace {

const std::vector<TrainingCase> kLayouts = {
    {"alone_accumulates", {.micro_batches = 2}},
    {"tensor4", {.tensor = 4}},
    {"data2_tensor2_zero3", {.data = 2, .tensor = 2, .micro_batches = 2, .sharding = small_buckets(3)}},
    {"data2_tensor2_zero2_each",
     {.data = 2, .tensor = 2, .micro_batches = 2, .sharding = small_buckets(2, ShardOptions::Reduce::kAfterEach)}},
    {"pipeline2_tensor2", {.pipeline = 2, .tensor = 2, .micro_batches = 4}},
    {"zero_bubble", {.pipeline = 2, .kind = ScheduleKind::kZeroBubble, .tensor = 2, .micro_batches = 4}},
    {"interleaved_data2",
     {.pipeline = 2, .chunks = 2, .kind = ScheduleKind::kInterleaved, .data = 2, .tensor = 2, .micro_batches = 2}},
    {"skips_stages", {.pipeline = 4, .micro_batches = 4, .loss_rate = 0.2, .sent_past = {true, true}}},
};

class RecomputationInLayouts : public testing::TestWithParam<TrainingCase> {};

TEST_P(RecomputationInLayouts, ChangesNoBit) {
  Training run = GetParam().run;
  run.steps = 3;
  const TrainingResult want = train<float>(run);
  for (const NamedOptions& item : all_options(run.config.layers)) {
    SCOPED_TRACE(item.name);
    run.memory = item.options;
    const TrainingResult got = train<float>(run);
    expect_equal_bits(got, want);
    EXPECT_LE(got.bytes, want.bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, RecomputationInLayouts, testing::ValuesIn(kLayouts),
                         [](const auto& item) { return std::string(item.param.name); });

}  // namespace
}  // namespace droptest::models::recompute_layouts_test
