// SPDX-License-Identifier: Apache-2.0
// The traffic class of a call, and its exemptions.
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/api/networks.h"

namespace droptest::api::call_rules_test {
namespace {

std::string class_of(droptest_network* network, const char* operation, std::uint64_t elements,
                     droptest_type type = DROPTEST_FLOAT32, int ranks = 4, const char* group = nullptr) {
  const droptest_call call{operation, group, ranks, type, elements};
  droptest_class found{};
  EXPECT_EQ(droptest_classify(network, &call, &found), DROPTEST_OK) << droptest_last_error();
  return droptest_class_name(found);
}

nlohmann::json exempt_of(droptest_network* network) {
  std::size_t needed = 0;
  EXPECT_EQ(droptest_network_statistics(network, nullptr, 0, &needed), DROPTEST_OK);
  std::string text(needed, ' ');
  EXPECT_EQ(droptest_network_statistics(network, text.data(), text.size(), &needed), DROPTEST_OK);
  return nlohmann::json::parse(text.c_str())["exempt"];
}

TEST(CallRules, OperationsHaveClassesOfTheirOwn) {
  const NetworkHandle network = network_of(bernoulli_text(0.1));
  EXPECT_EQ(class_of(network.get(), "all_reduce", 1000), "dp_gradient");
  EXPECT_EQ(class_of(network.get(), "reduce_scatter", 1000), "dp_gradient");
  EXPECT_EQ(class_of(network.get(), "all_gather", 1000), "parameter_gather");
  EXPECT_EQ(class_of(network.get(), "send", 1000), "pp_activation");
  EXPECT_EQ(class_of(network.get(), "all_to_all", 1000), "sequence_forward");
  EXPECT_EQ(exempt_of(network.get()), nlohmann::json::object());
}

TEST(CallRules, ExemptCallsAreCountedByTheirReason) {
  const NetworkHandle network =
      network_of(R"({"network": {"loss": {"model": "none"}}, "rules": [{"group": "norms", "class": "control"}]})");
  EXPECT_EQ(class_of(network.get(), "barrier", 0), "control");
  EXPECT_EQ(class_of(network.get(), "broadcast", 1000), "control");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 1000, DROPTEST_INT64), "control");
  EXPECT_EQ(class_of(network.get(), "all_gather", 9000, DROPTEST_UINT8), "control");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 351), "control");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 352), "dp_gradient");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 1000, DROPTEST_FLOAT32, 1), "control");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 1000, DROPTEST_FLOAT32, 4, "norms"), "control");
  const droptest_call product{"all_reduce", nullptr, 4, DROPTEST_FLOAT64, 10};
  ASSERT_EQ(droptest_count_exempt(network.get(), &product), DROPTEST_OK);
  EXPECT_EQ(exempt_of(network.get()), nlohmann::json::parse(R"({
    "operation": {"calls": 2, "bytes": 4000}, "integer": {"calls": 2, "bytes": 17000},
    "small": {"calls": 1, "bytes": 1404}, "one_rank": {"calls": 1, "bytes": 4000},
    "rule": {"calls": 1, "bytes": 4000}, "no_loss_layer": {"calls": 1, "bytes": 80}})"));
}

TEST(CallRules, ARuleForAMessageHoldsAtBothEnds) {
  for (const std::string operation : {"send", "recv"}) {
    const NetworkHandle network = network_of(R"({"network": {"loss": {"model": "none"}}, "rules": [{"operation": ")" +
                                             operation + R"(", "class": "pp_gradient"}]})");
    EXPECT_EQ(class_of(network.get(), "send", 1000), "pp_gradient");
    EXPECT_EQ(class_of(network.get(), "recv", 1000), "pp_gradient");
    EXPECT_EQ(class_of(network.get(), "all_to_all", 1000), "sequence_forward");
  }
}

TEST(CallRules, AnExemptMessageIsCountedOnceByItsSender) {
  const NetworkHandle network = network_of(bernoulli_text(0.1));
  EXPECT_EQ(class_of(network.get(), "send", 8), "control");
  EXPECT_EQ(class_of(network.get(), "recv", 8), "control");
  EXPECT_EQ(exempt_of(network.get()), nlohmann::json::parse(R"({"small": {"calls": 1, "bytes": 32}})"));
}

TEST(CallRules, TheFirstRuleThatMatchesCounts) {
  const NetworkHandle network = network_of(R"({"network": {"loss": {"model": "none"}}, "rules": [
    {"operation": "all_reduce", "group": "tp", "class": "tp_forward"},
    {"operation": "all_reduce", "ranks": 2, "class": "embedding_gradient"},
    {"operation": "all_reduce", "at_least_bytes": 4000, "at_most_bytes": 8000, "class": "outer"},
    {"operation": "all_reduce", "at_least_bytes": 4000, "class": "sequence_backward"},
    {"operation": "all_gather", "class": "tp_forward"}]})");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 1000, DROPTEST_FLOAT32, 2, "tp"), "tp_forward");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 1000, DROPTEST_FLOAT32, 2, "dp"), "embedding_gradient");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 999), "dp_gradient");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 1000), "outer");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 2000), "outer");
  EXPECT_EQ(class_of(network.get(), "all_reduce", 2001), "sequence_backward");
  EXPECT_EQ(class_of(network.get(), "all_gather", 2001), "tp_forward");
  EXPECT_EQ(class_of(network.get(), "reduce_scatter", 2001), "dp_gradient");
}

}  // namespace
}  // namespace droptest::api::call_rules_test
