// SPDX-License-Identifier: Apache-2.0
// The JSON of another program's network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "comm/lossy/lossy_communicator.h"
#include "comm/spec/lossy_options_from_json.h"
#include "comm/spec/program_network.h"
#include "sim/error.h"
#include "tests/api/networks.h"

namespace droptest::api::program_network_test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ProgramNetwork, MistakesHaveTheMessagesOfSpecs) {
  const std::string text = R"({"network": {"loss": {"model": "bernoulli", "loss_rat": 0.1}}})";
  std::string of_specs;
  try {
    comm::lossy_options_from_json(text, "net.json", {});
  } catch (const ConfigError& error) {
    of_specs = error.what();
  }
  EXPECT_EQ(refusal_of(text), of_specs);
  EXPECT_THAT(of_specs, HasSubstr("net.json: /network/loss/loss_rat: got an unknown key; did you mean \"loss_rate\"?"));
}

TEST(ProgramNetwork, MembersThatNeedAnOwnCommunicatorAreRefusedByName) {
  const auto lossy = [](const std::string& more) { return bernoulli_text(0.1, 1, more); };
  EXPECT_THAT(refusal_of(lossy(R"(, "path": "ring")")),
              HasSubstr("/network/path: got \"ring\", want \"contribution\""));
  EXPECT_THAT(refusal_of(lossy(R"(, "classes": {"tp_forward": {"path": "direct"}})")),
              HasSubstr("/network/classes/tp_forward/path: got \"direct\""));
  EXPECT_THAT(refusal_of(lossy(R"(, "fill": "stale")")), HasSubstr("/network/fill: got \"stale\", want zero"));
  EXPECT_THAT(refusal_of(lossy(R"(, "recovery": {"error_feedback": true})")),
              HasSubstr("/network/recovery/error_feedback: got true, want it absent or false"));
  EXPECT_THAT(refusal_of(lossy(R"(, "recovery": {"hadamard": {"block_elements": 64}})")),
              HasSubstr("/network/recovery/hadamard"));
  EXPECT_THAT(refusal_of(lossy(R"(, "recovery": {"interleave": 8})")), HasSubstr("/network/recovery/interleave"));
  EXPECT_THAT(refusal_of(lossy(R"(, "compression": {"kind": "power_sgd", "rank": 2})")),
              HasSubstr("/network/compression: got"));
  EXPECT_THAT(refusal_of(lossy(R"(, "classes": {"pp_activation": {"backward": "gradient"}})")),
              HasSubstr("/network/classes/pp_activation/backward: got \"gradient\", want it absent"));
  EXPECT_THAT(refusal_of(R"({"network": {}, "time": {}})"), HasSubstr("net.json: /time: got an unknown key"));
  EXPECT_THAT(refusal_of(R"({"network": {"loss": {"model": "none"}}, "rules": [{"class": "dp"}]})"),
              HasSubstr("/rules/0/class: got \"dp\""));
}

TEST(ProgramNetwork, AClassCanLoseWhereAnyOfItsLinksCan) {
  const auto can_lose = [](const std::string& section, droptest_class traffic_class) {
    const NetworkHandle network = network_of(R"({"network": )" + section + "}");
    std::int32_t found = -1;
    EXPECT_EQ(droptest_network_can_lose(network.get(), traffic_class, &found), DROPTEST_OK) << droptest_last_error();
    return found;
  };
  const std::string some = R"({"model": "bernoulli", "loss_rate": 0.1})";
  EXPECT_EQ(can_lose(R"({"loss": )" + some + "}", DROPTEST_DP_GRADIENT), 1);
  EXPECT_EQ(can_lose(R"({"loss": {"model": "none"}, "fill": "count_rescale"})", DROPTEST_DP_GRADIENT), 0);
  EXPECT_EQ(can_lose(R"({"loss": {"model": "bernoulli", "loss_rate": 0}})", DROPTEST_DP_GRADIENT), 0);
  const std::string of_one_link = R"({"loss": {"model": "none"}, "links": [{"sources": [1], "loss": )" + some + "}]}";
  EXPECT_EQ(can_lose(of_one_link, DROPTEST_PP_ACTIVATION), 1);
  const std::string of_one_class = R"({"classes": {"pp_activation": {"gather": {"loss": )" + some + "}}}}";
  EXPECT_EQ(can_lose(of_one_class, DROPTEST_PP_ACTIVATION), 1);
  EXPECT_EQ(can_lose(of_one_class, DROPTEST_DP_GRADIENT), 0);
  const NetworkHandle network = network_of(bernoulli_text(0.1));
  std::int32_t found = 0;
  EXPECT_EQ(droptest_network_can_lose(network.get(), DROPTEST_CONTROL, &found), DROPTEST_ARGUMENT_ERROR);
  EXPECT_EQ(droptest_network_can_lose(network.get(), DROPTEST_OUTER, nullptr), DROPTEST_ARGUMENT_ERROR);
}

TEST(ProgramNetwork, ANetworkThatNamesNoLossIsRefused) {
  const auto of = [](const std::string& section) { return R"({"network": )" + section + "}"; };
  EXPECT_EQ(refusal_of(of("{}")),
            "net.json: /network: got no loss, want \"loss\" in it, in a half or in a class; "
            "{\"loss\": {\"model\": \"none\"}} is a network that loses nothing");
  EXPECT_THAT(refusal_of(of(R"({"fill": "count_rescale", "classes": {"outer": {"payload_bytes": 64}}})")),
              HasSubstr("/network: got no loss"));
  EXPECT_NE(network_of(of(R"({"loss": {"model": "none"}})")), nullptr);
  EXPECT_NE(network_of(of(R"({"gather": {"loss": {"model": "bernoulli", "loss_rate": 0.1}}})")), nullptr);
  EXPECT_NE(network_of(of(R"({"classes": {"outer": {"loss": {"model": "bernoulli", "loss_rate": 0.1}}}})")), nullptr);
}

TEST(ProgramNetwork, AFillThatZerosWouldReplaceIsRefused) {
  const auto of = [](const std::string& fill) {
    return R"({"network": {"loss": {"model": "bernoulli", "loss_rate": 0.1}, "fill": ")" + fill + "\"}}";
  };
  for (const char* fill : {"own", "own_scaled", "skip", "absent"}) {
    EXPECT_THAT(refusal_of(of(fill)), HasSubstr("/network/fill: got \"" + std::string(fill) + "\"")) << fill;
  }
  for (const char* fill : {"zero", "count_rescale", "inverse_probability"}) {
    EXPECT_NE(network_of(of(fill)), nullptr) << fill;
  }
  EXPECT_NE(network_of(R"({"network": {"gather": {"loss": {"model": "bernoulli", "loss_rate": 0.1}}, )"
                       R"("fill": "count_rescale"}})"),
            nullptr)
      << "it acts on contributions, of which none is lost";
}

TEST(ProgramNetwork, ThePathIsContributionAndEveryClassHasANetwork) {
  const comm::ProgramNetwork program = comm::program_network_from_json(bernoulli_text(0), "net.json", 2);
  for (const sim::TrafficClass of : sim::kAllTrafficClasses) {
    if (of == sim::TrafficClass::kControl) continue;
    ASSERT_TRUE(program.network.of(of).has_value());
    EXPECT_EQ(program.network.of(of)->path, "contribution");
  }
  EXPECT_EQ(program.statistics, "");
}

}  // namespace
}  // namespace droptest::api::program_network_test
