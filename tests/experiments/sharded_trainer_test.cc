// SPDX-License-Identifier: Apache-2.0
// Training on shards: equal in every layout, and with samples that are lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "experiments/data/corpus.h"
#include "experiments/training/training_data.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/layouts_of_runs.h"
#include "tests/experiments/sharded_runs.h"

namespace droptest::experiments::sharded_trainer_test {
namespace {

using nlohmann::json;

class ShardedTrainer : public ::testing::Test {
 protected:
  ShardedTrainer() { write_three_shards(folder_.path()); }

  TinyResult train_with(const json& changes) {
    json spec = sharded_spec(folder_.path());
    spec.merge_patch(changes);
    const ResolvedRun run = resolved_with_files(spec);
    return train_locally(run.config, load_corpus(run.config, access_with(faults_)));
  }

  const TemporaryFolder folder_;
  Faults faults_;
};

json layout(int data, int accumulation, int batch) {
  return {{"parallel", {{"data", data}}}, {"training", {{"accumulation", accumulation}, {"batch_sequences", batch}}}};
}

TEST_F(ShardedTrainer, AnEpochIsTheSameTrainingInEveryLayout) {
  const TinyResult one = train_with(json::object());
  EXPECT_EQ(one.outcome.steps, 5U);
  EXPECT_EQ(one.outcome.tokens, 18U * 8U);
  ASSERT_TRUE(one.outcome.data);
  EXPECT_EQ(one.outcome.data->samples, 18U);
  EXPECT_EQ(one.outcome.data->lost_samples, 0U);
  for (const auto& [data, accumulation, batch] : {std::tuple(2, 2, 1), std::tuple(4, 1, 1), std::tuple(1, 1, 4)}) {
    SCOPED_TRACE(std::to_string(data) + " replicas");
    expect_same_training(train_with(layout(data, accumulation, batch)), one);
  }
  json pipeline = layout(1, 4, 1);
  pipeline["parallel"]["pipeline"] = 2;
  pipeline["model"]["layers"] = 2;
  EXPECT_EQ(train_with(pipeline).outcome.tokens, 18U * 8U);
}

/// Steps with and without a shard differ only in that shard. The loss is the mean over the available targets, so a
/// replica with no target changes nothing.
TEST_F(ShardedTrainer, LostSamplesTakeNoPartInTheMean) {
  const json allowed = {{"data", {{"lost_limit", 0.9}}}};
  faults_.broken = {{-1, "a.bin"}};
  json spec = layout(1, 4, 1);
  spec.merge_patch(allowed);
  const TinyResult one = train_with(spec);
  EXPECT_EQ(one.outcome.tokens, 8U * 8U);
  EXPECT_EQ(one.outcome.data->lost_samples, 10U);
  EXPECT_EQ(one.lines.back().lost_samples, 10U);
  EXPECT_FALSE(one.outcome.diverged_step);
  spec = layout(4, 1, 1);
  spec.merge_patch(allowed);
  expect_same_training(train_with(spec), one);
}

TEST_F(ShardedTrainer, AStepWithoutSamplesChangesNothing) {
  faults_.broken = {{-1, ".bin"}};
  const TinyResult none = train_with({{"data", {{"lost_limit", 1}}}});
  EXPECT_EQ(none.outcome.steps, 5U);
  EXPECT_EQ(none.outcome.tokens, 0U);
  EXPECT_FALSE(none.outcome.diverged_step);
  EXPECT_EQ(none.outcome.data->lost_samples, 18U);
  EXPECT_EQ(none.outcome.data->lost_shards.size(), 3U);
  EXPECT_EQ(none.lines.front().validation_loss, none.lines.back().validation_loss);
  for (const MetricsLine& line : none.lines) EXPECT_FALSE(line.train_loss);
}

}  // namespace
}  // namespace droptest::experiments::sharded_trainer_test
