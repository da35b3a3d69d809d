// SPDX-License-Identifier: Apache-2.0
// Runs that would use up the packet indices of a link are refused before they begin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/spec/resolve.h"
#include "experiments/spec/run_traffic.h"
#include "tests/comm/error_text.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::index_space_test {
namespace {

std::string error_with(const std::vector<std::string>& members) {
  return config_error_of([&] { (void)resolved(kTwoRanks, members); });
}

const char* const kByMessage = "/network/burst_scope=message";

// A step has three sums of activations in each block's direction, with those of the embedding: 2 x 2 + 1 of two blocks.
TEST(IndexSpace, LinksToEveryRankHaveRoomForSixteenMillionMessages) {
  const std::vector<std::string> to_all = {kByMessage, "/network/path=contribution", "/model/layers=2"};
  const auto with_steps = [&](std::vector<std::string> members, const std::string& steps) {
    members.push_back("/training/steps=" + steps);
    return error_with(members);
  };
  EXPECT_EQ(with_steps(to_all, "3300000"), "(no error)");
  EXPECT_THAT(
      with_steps(to_all, "3400000"),
      testing::HasSubstr("/network/burst_scope: got \"message\" with up to 17000000 messages of tp_forward on a "
                         "link to every rank of a group in the whole run, want at most 16777215, or \"link\""));
  std::vector<std::string> micro_batches = to_all;
  micro_batches.emplace_back("/training/accumulation=10");
  EXPECT_THAT(with_steps(micro_batches, "340000"), testing::HasSubstr("up to 17000000 messages"));
  // Evaluations count if they lose packets.
  std::vector<std::string> evaluated = to_all;
  evaluated.insert(evaluated.end(), {"/validation/every_steps=1", "/validation/tokens=1024"});
  EXPECT_EQ(with_steps(evaluated, "2000000"), "(no error)");
  evaluated.emplace_back("/validation/network=lossy");
  EXPECT_THAT(with_steps(evaluated, "2000000"), testing::HasSubstr("want at most 16777215"));
  // Other links have room for 2^32 messages, and indices along a link for 2^48 packets.
  EXPECT_EQ(with_steps({kByMessage, "/network/path=direct", "/model/layers=2"}, "3400000"), "(no error)");
  EXPECT_EQ(with_steps({"/network/path=contribution", "/model/layers=2"}, "3400000"), "(no error)");
  EXPECT_THAT(with_steps({kByMessage, "/network/path=direct", "/model/layers=2"}, "900000000"),
              testing::HasSubstr("want at most 4294967295, or \"link\""));
  EXPECT_THAT(with_steps({"/network/payload_bytes=8", "/model/layers=2"}, "100000000000"),
              testing::HasSubstr("want at most 281474976710655"));
}

// Each tensor-parallel rank averages its own part with its replicas.
TEST(IndexSpace, OuterStepsCountOnTheLinksOfEachTensorRank) {
  const auto with_steps = [](const std::string& steps) {
    return error_with({kByMessage, "/network/path=contribution", "/network/classes/tp_forward/burst_scope=link",
                       "/network/classes/tp_backward/burst_scope=link", "/parallel/data=2", "/outer/every_steps=1",
                       "/training/steps=" + steps});
  };
  EXPECT_EQ(with_steps("16700000"), "(no error)");
  EXPECT_THAT(with_steps("16800000"), testing::HasSubstr("with up to 16800000 messages of outer on a link to every"));
  EXPECT_THAT(with_steps("1000000000000000"), testing::HasSubstr("/training/steps"));
}

TEST(IndexSpace, APipelineHasRoomForHalfABillionMessagesOfALink) {
  const auto error = [](const std::string& steps, const std::string& schedule, const std::string& chunks = "1") {
    return error_with({"/parallel/pipeline=2", "/model/layers=4", schedule, "/parallel/chunks=" + chunks,
                       "/training/accumulation=8", "/training/steps=" + steps});
  };
  EXPECT_EQ(error("67000000", "/parallel/schedule=1f1b"), "(no error)");
  EXPECT_THAT(error("67200000", "/parallel/schedule=1f1b"),
              testing::HasSubstr("/training/steps: got 67200000 steps with up to 8 messages of pp_activation on a link "
                                 "in each, want at most 536870912 messages in the whole run"));
  // Messages between stages go from rank to rank on every path.
  EXPECT_EQ(error_with({"/parallel/pipeline=2", "/parallel/tensor=1", "/network/path=contribution", kByMessage,
                        "/training/steps=60000000", "/network/classes/embedding_gradient/path=direct"}),
            "(no error)");
  EXPECT_THAT(error("33600000", "/parallel/schedule=interleaved", "2"),
              testing::HasSubstr("with up to 16 messages of pp_activation"));
}

// All that a run with these members sends has room: pipeline and replicas, messages with fates of their own, a clock,
// repetitions, and inputs that are sent past stages.
TEST(IndexSpace, CollectivesOfARunAreThoseOfItsStepsAndEvaluations) {
  RunConfig config = resolved(kTwoRanks, {"/training/steps=10", "/training/accumulation=3", "/parallel/data=2",
                                          "/validation/every_steps=4", "/validation/tokens=8192"})
                         .config;
  PlannedCollective planned;
  planned.counts = {.times = 6, .evaluated = 4, .once = 2};
  EXPECT_EQ(times_in_run(config, planned, planned.counts), 62U);
  config.validation.network = ValidationConfig::Network::kLossy;
  // Four evaluations: before the first step, after 4, 8 and 10. Two replicas take batches in turn.
  const std::uint64_t batches =
      8192 / static_cast<std::uint64_t>(config.training.batch_sequences * config.training.sequence_tokens);
  EXPECT_EQ(times_in_run(config, planned, planned.counts), 62 + 4 * batches * 4 / 2);
  planned.call.collective = sim::Collective::kAllGather;
  planned.dimensions = {comm::ParallelDimension::kSequence};
  EXPECT_EQ(times_in_run(config, planned, planned.counts), 62 + 4 * ((batches + 1) / 2) * 4);
}

}  // namespace
}  // namespace droptest::experiments::index_space_test
