// SPDX-License-Identifier: Apache-2.0
// The resolved layout of a run, and what it changes of its network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/json/json_text.h"
#include "experiments/spec/resolve.h"
#include "tests/comm/error_text.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments {
namespace {

using comm::canonical_json;

TEST(Resolve, ALayoutIsWrittenOutWhereThereAreReplicas) {
  // Members that change nothing are left out, so ids are those of specs without them.
  const std::vector<std::string> nothing = {"/parallel/pipeline=1",
                                            "/parallel/bucket_bytes=7",
                                            "/parallel/data=1",
                                            R"(/parallel/order=["tensor", "sequence", "data", "pipeline"])",
                                            "/training/gradient_norm=own",
                                            "/training/global_batch_sequences=8"};
  EXPECT_EQ(id_with(nothing), id_with({}));
  EXPECT_EQ(canonical_json(resolved(kTwoRanks, nothing).spec["parallel"]), R"({"tensor":2})");

  const ResolvedRun run =
      resolved(kTwoRanks, {"/parallel/data=4", "/parallel/zero=2", "/parallel/reduce=after_each",
                           R"(/parallel/order=["tensor", "sequence", "data", "pipeline"])",
                           "/training/global_batch_sequences=96", "/parallel/first_bucket_bytes=5"});
  EXPECT_EQ(canonical_json(run.spec["parallel"]),
            R"({"bucket_bytes":26214400,"data":4,"first_bucket_bytes":5,)"
            R"("order":["tensor","sequence","data","pipeline"],"reduce":"after_each","tensor":2,"zero":2})");
  EXPECT_EQ(run.spec["training"]["accumulation"], 3);
  EXPECT_EQ(run.config.parallel.world_size(), 8);
  EXPECT_EQ(run.config.parallel.order, comm::kMegatronOrder);
  EXPECT_EQ(run.config.sharding.zero, 2);
  EXPECT_EQ(run.config.sharding.bucket_bytes, 26214400U);
  EXPECT_EQ(run.config.sharding.first_bucket_bytes, 5U);
  EXPECT_EQ(run.config.sharding.micro_batches, 3);
  EXPECT_TRUE(run.config.sharding.reduces_each());
  const ResolvedRun sgd = resolved(kTwoRanks, {"/training/optimizer=sgd", "/training/momentum=0.5"});
  EXPECT_EQ(sgd.config.training.optimizer.rule, models::OptimizerConfig::Rule::kSgd);
  EXPECT_EQ(sgd.config.training.optimizer.momentum, 0.5);
  EXPECT_EQ(resolved(kTwoRanks, {"/training/optimizer=sgd"}).spec["training"]["momentum"], 0.9);
  EXPECT_EQ(resolved(kTwoRanks, {"/parallel/data=2", "/training/gradient_norm=own"}).config.training.gradient_norm,
            models::UpdateRule::Norm::kOwn);
}

TEST(Resolve, MembersWithoutEffectOnReplicasChangeNoId) {
  const auto id = [](std::vector<std::string> with, const std::vector<std::string>& more) {
    with.insert(with.end(), more.begin(), more.end());
    return id_with(with);
  };
  const std::vector<std::string> two = {"/parallel/data=2", "/parallel/zero=2"};
  EXPECT_EQ(id(two, {"/parallel/reduce=after_each"}), id(two, {})) << "one micro-batch";
  EXPECT_NE(id(two, {"/parallel/reduce=after_each", "/training/accumulation=2"}),
            id(two, {"/training/accumulation=2"}));
  EXPECT_EQ(id(two, {"/parallel/gather_bucket_bytes=8"}), id(two, {}));
  EXPECT_NE(id(two, {"/parallel/bucket_bytes=8"}), id(two, {}));
  const std::vector<std::string> three = {"/parallel/data=2", "/parallel/zero=3"};
  EXPECT_NE(id(three, {"/parallel/gather_bucket_bytes=8"}), id(three, {}));
  EXPECT_EQ(id(three, {"/parallel/bucket_bytes=8", "/parallel/first_bucket_bytes=8"}), id(three, {}));
  const std::string order = R"(/parallel/order=["tensor", "sequence", "data", "pipeline"])";
  const std::string other_order = R"(/parallel/order=["data", "tensor", "sequence", "pipeline"])";
  EXPECT_NE(id(two, {order}), id(two, {other_order}));
  EXPECT_EQ(id({"/parallel/data=2", "/parallel/tensor=1"}, {order}),
            id({"/parallel/data=2", "/parallel/tensor=1"}, {other_order}));
}

// The gradients of sharded state are scattered: their reductions have no gather half, but on paths with groups.
TEST(Resolve, ScatteredGradientsHaveNoGatherHalf) {
  const std::vector<std::string> lossy = {"/parallel/data=4",
                                          "/network/loss={\"model\": \"bernoulli\", \"loss_rate\": 0.1}"};
  const auto gather = [&](std::vector<std::string> with) {
    with.insert(with.end(), lossy.begin(), lossy.end());
    return canonical_json(resolved(kTwoRanks, with).spec["network"]["classes"]["dp_gradient"]["gather"]["loss"]);
  };
  const std::string none = R"({"model":"none"})";
  EXPECT_NE(gather({}), none);
  EXPECT_EQ(gather({"/parallel/zero=1"}), none);
  EXPECT_NE(
      gather({"/parallel/zero=1", R"(/network/classes={"dp_gradient": {"path": "hierarchical", "group_ranks": 2}})"}),
      none);
  EXPECT_THAT(
      config_error_of([] {
        (void)resolved(kTwoRanks, {"/parallel/data=2", "/parallel/zero=1",
                                   R"(/network/classes={"dp_gradient": {"gather": {"fill": "stale"}}})"});
      }),
      testing::HasSubstr("/network/classes/dp_gradient/gather: got a gather half, which a reduce-scatter on path "
                         "direct does not have; want it absent"));
}

}  // namespace
}  // namespace droptest::experiments
