// SPDX-License-Identifier: Apache-2.0
// Fates that a caller draws itself, and the counts of messages that lost their packets elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "sim/random/threshold.h"
#include "tests/api/networks.h"

namespace droptest::api::flow_law_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

droptest_status law_of(const std::string& section, droptest_law& law) {
  const NetworkHandle network = network_of(R"({"seed": 9, "network": )" + section + "}");
  return droptest_flow_law(contribution_flow(network.get(), 0, 3), &law);
}

TEST(FlowLaw, HasTheThresholdsOfTheProcessAndTheIndicesOfTheGroup) {
  droptest_law law{};
  ASSERT_EQ(law_of(R"({"payload_bytes": 64, "loss": {"model": "bernoulli", "loss_rate": 0.25}})", law), DROPTEST_OK);
  EXPECT_EQ(law.seed, 9U);
  EXPECT_EQ(law.payload_bytes, 64U);
  EXPECT_EQ(law.first_packet, std::uint64_t{3} << 48U);
  EXPECT_EQ(law.to_bad, std::uint64_t{1} << 30U);
  EXPECT_EQ(law.to_good, law.to_bad);
  EXPECT_EQ(law.lost_in_good, 0U);
  EXPECT_EQ(law.lost_in_bad, sim::kCertain);
  ASSERT_EQ(law_of(R"({"loss": {"model": "gilbert_elliott", "p_good_to_bad": 0.75, "p_bad_to_good": 0.5,
                                "loss_good": 0.25, "loss_bad": 0.5}})",
                   law),
            DROPTEST_OK);
  EXPECT_EQ(law.to_bad, std::uint64_t{2} << 30U);
  EXPECT_EQ(law.to_good, std::uint64_t{3} << 30U);
  EXPECT_EQ(law.middle_swaps, 1);
  EXPECT_EQ(law.lost_in_good, std::uint64_t{1} << 30U);
  EXPECT_EQ(law.lost_in_bad, std::uint64_t{2} << 30U);
  ASSERT_EQ(law_of(R"({"loss": {"model": "none"}})", law), DROPTEST_OK);
  EXPECT_EQ(law.to_bad, 0U);
}

TEST(FlowLaw, ANetworkThatNeedsMoreIsRefusedByTheNameOfTheMember) {
  const std::string loss = R"("loss": {"model": "bernoulli", "loss_rate": 0.25})";
  const std::vector<std::pair<std::string, std::string>> refused = {
      {R"({"loss": {"model": "pattern", "every": 10}})", "loss: got pattern"},
      {"{" + loss + R"(, "recovery": {"parity": {"data": 8, "parity": 2}}})", "recovery: got one"},
      {"{" + loss + R"(, "fill": "count_rescale"})", "fill: got count_rescale"},
      {"{" + loss + R"(, "burst_scope": "message"})", "burst_scope: got message"},
      {"{" + loss + R"(, "gather": {"loss": {"model": "bernoulli", "loss_rate": 0.25}}})", "gather/loss: got losses"},
  };
  for (const auto& [section, words] : refused) {
    droptest_law law{};
    EXPECT_EQ(law_of(section, law), DROPTEST_CONFIG_ERROR) << section;
    EXPECT_THAT(droptest_last_error(), AllOf(HasSubstr("class dp_gradient: "), HasSubstr(words)));
  }
}

TEST(FlowCount, CountsAreThoseOfMessagesThatWereDrawn) {
  const NetworkHandle drawn = network_of(bernoulli_text(0.3));
  const NetworkHandle counted = network_of(bernoulli_text(0.3));
  constexpr std::uint64_t kElements = 352 * 10 + 5;  // 11 packets
  std::vector<std::uint64_t> mask(1);
  for (int message = 0; message < 6; ++message) {
    ASSERT_EQ(droptest_flow_next(contribution_flow(drawn.get()), kElements, DROPTEST_FLOAT32, mask.data(), mask.size(),
                                 nullptr),
              DROPTEST_OK);
  }
  std::uint64_t lost = 0;
  std::uint64_t lost_later = 0;
  droptest_flow* const flow = contribution_flow(counted.get());
  ASSERT_EQ(droptest_flow_count(flow, 4, 44, 4 * kElements * 4, &lost), DROPTEST_OK);
  ASSERT_EQ(droptest_flow_count(flow, 2, 22, 2 * kElements * 4, &lost_later), DROPTEST_OK);
  ASSERT_EQ(droptest_flow_count(flow, 0, 0, 0, nullptr), DROPTEST_OK);
  const droptest_counts expected = counts_of(contribution_flow(drawn.get()));
  const droptest_counts counts = counts_of(flow);
  EXPECT_EQ(counts.messages, 6U);
  EXPECT_EQ(counts.packets, expected.packets);
  EXPECT_EQ(counts.bytes, expected.bytes);
  EXPECT_EQ(counts.lost, expected.lost);
  EXPECT_EQ(counts.lost, lost + lost_later);
  EXPECT_EQ(counts.lost_bytes, expected.lost_bytes);
  EXPECT_EQ(counts.digest, expected.digest);
}

TEST(FlowCount, SizesThatNoMessagesHaveAreRefused) {
  const NetworkHandle network = network_of(bernoulli_text(0.3));
  droptest_flow* const flow = contribution_flow(network.get());
  EXPECT_EQ(droptest_flow_count(flow, 2, 1, 1408, nullptr), DROPTEST_ARGUMENT_ERROR);
  EXPECT_EQ(droptest_flow_count(flow, 0, 1, 1408, nullptr), DROPTEST_ARGUMENT_ERROR);
  EXPECT_EQ(droptest_flow_count(flow, 1, 2, 3000, nullptr), DROPTEST_ARGUMENT_ERROR);
  EXPECT_EQ(droptest_flow_count(flow, 1, 2, 1000, nullptr), DROPTEST_ARGUMENT_ERROR);
  EXPECT_THAT(droptest_last_error(), HasSubstr("got 1, 2 and 1000"));
}

}  // namespace
}  // namespace droptest::api::flow_law_test
