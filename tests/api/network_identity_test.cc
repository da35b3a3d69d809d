// SPDX-License-Identifier: Apache-2.0
// Ranks compare their networks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/api/networks.h"

namespace droptest::api::network_identity_test {
namespace {

using testing::HasSubstr;

std::uint64_t digest_of(const std::string& text, int rank = 0) {
  std::uint64_t digest = 0;
  EXPECT_EQ(droptest_network_digest(network_of(text, rank).get(), &digest), DROPTEST_OK) << droptest_last_error();
  return digest;
}

std::string identity_of(const droptest_network* network) {
  std::size_t needed = 0;
  EXPECT_EQ(droptest_network_identity(network, nullptr, 0, &needed), DROPTEST_OK);
  std::string text(needed, ' ');
  EXPECT_EQ(droptest_network_identity(network, text.data(), text.size(), &needed), DROPTEST_OK);
  text.pop_back();
  return text;
}

/// The error of rank 0 about the network of rank 2.
std::string difference(const std::string& own, const std::string& of_peer) {
  const NetworkHandle peer = network_of(of_peer, 2);
  EXPECT_EQ(droptest_network_check_peer(network_of(own).get(), 2, identity_of(peer.get()).c_str()), DROPTEST_MISMATCH);
  return droptest_last_error();
}

TEST(NetworkIdentity, RanksWithOneNetworkHaveOneDigest) {
  const std::string text = bernoulli_text(0.25);
  EXPECT_EQ(digest_of(text, 0), digest_of(text, 3));
  const std::string spelled =
      R"({"seed": 1, "statistics": "of_another_rank", "network": {"loss": {"loss_rate": "25%", )";
  EXPECT_EQ(digest_of(text), digest_of(spelled + R"("model": "bernoulli"}}})"));
  const NetworkHandle one = network_of(text);
  EXPECT_EQ(droptest_network_check_peer(one.get(), 3, identity_of(network_of(text, 3).get()).c_str()), DROPTEST_OK);
}

TEST(NetworkIdentity, SeedSectionAndRulesChangeTheDigest) {
  const std::string text = bernoulli_text(0.25);
  EXPECT_NE(digest_of(text), digest_of(bernoulli_text(0.25, 2)));
  EXPECT_NE(digest_of(text), digest_of(bernoulli_text(0.26)));
  EXPECT_NE(digest_of(text), digest_of(bernoulli_text(0.25, 1, R"(, "payload_bytes": 64)")));
  EXPECT_NE(digest_of(text), digest_of(bernoulli_text(0.25, 1, R"(, "fill": "count_rescale")")));
  std::string with_rule = text;
  with_rule.insert(1, R"("rules": [{"operation": "all_gather", "class": "control"}], )");
  EXPECT_NE(digest_of(text), digest_of(with_rule));
  const NetworkHandle one = network_of(text);
  EXPECT_EQ(nlohmann::json::parse(identity_of(one.get()))["version"], droptest_version());
}

TEST(NetworkIdentity, TheFirstMemberThatDiffersIsNamedWithBothRanksAndValues) {
  EXPECT_EQ(difference(bernoulli_text(0.25, 1), bernoulli_text(0.25, 3)),
            "network: /seed is 1 on rank 0 and 3 on rank 2: want one network section and one seed on all ranks");
  EXPECT_THAT(difference(bernoulli_text(0.25), bernoulli_text(0.5)),
              HasSubstr("/reduce/loss/loss_rate is 0.25 on rank 0 and 0.5 on rank 2"));
  std::string with_rule = bernoulli_text(0.25);
  with_rule.insert(1, R"("rules": [{"operation": "all_gather", "class": "control"}], )");
  EXPECT_THAT(difference(bernoulli_text(0.25), with_rule), HasSubstr("/rules/0 is nothing on rank 0 and {"));
}

TEST(NetworkIdentity, ATextThatIsNoIdentityIsRefused) {
  const NetworkHandle network = network_of(bernoulli_text(0.25));
  EXPECT_EQ(droptest_network_check_peer(network.get(), 2, "?"), DROPTEST_ARGUMENT_ERROR);
  EXPECT_THAT(droptest_last_error(), HasSubstr("want the one that droptest_network_identity() gives on rank 2"));
  EXPECT_EQ(droptest_network_check_peer(network.get(), 4, identity_of(network.get()).c_str()), DROPTEST_ARGUMENT_ERROR);
}

}  // namespace
}  // namespace droptest::api::network_identity_test
