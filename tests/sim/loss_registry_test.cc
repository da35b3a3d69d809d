// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/loss_registry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "sim/error.h"
#include "sim/loss/gilbert_elliott.h"

namespace droptest::sim::loss_registry_test {
namespace {

Parameters loss(std::initializer_list<std::pair<const char*, Parameters::Value>> values) {
  Parameters::Members members;
  for (const auto& entry : values) {
    members.emplace(entry.first, Parameters(entry.second, "spec.json: /loss/" + std::string(entry.first)));
  }
  return {std::move(members), "spec.json: /loss"};
}

std::string error_of(std::initializer_list<std::pair<const char*, Parameters::Value>> values) {
  try {
    make_loss_process(loss(values));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

const Parameters::Value kNone = std::string("none");
const Parameters::Value kBernoulli = std::string("bernoulli");
const Parameters::Value kGilbertElliott = std::string("gilbert_elliott");

TEST(LossRegistry, MakesEachProcess) {
  const auto none = make_loss_process(loss({{"model", kNone}}));
  EXPECT_EQ(none->describe(), "none");
  EXPECT_FALSE(none->can_lose());
  const auto bernoulli = make_loss_process(loss({{"model", kBernoulli}, {"loss_rate", std::string("1%")}}));
  EXPECT_EQ(bernoulli->describe(), "bernoulli(loss_rate=0.01)");
  EXPECT_EQ(bernoulli->loss_rate(), 0.01);
  const auto four = make_loss_process(loss({{"model", kGilbertElliott},
                                            {"p_good_to_bad", 0.005},
                                            {"p_bad_to_good", 0.3},
                                            {"loss_good", std::int64_t{0}},
                                            {"loss_bad", 0.65}}));
  EXPECT_EQ(four->describe(), "gilbert_elliott(p_good_to_bad=0.005, p_bad_to_good=0.3, loss_good=0, loss_bad=0.65)");
  const auto burst = make_loss_process(
      loss({{"model", kGilbertElliott}, {"loss_rate", 0.05}, {"mean_burst_packets", std::int64_t{8}}}));
  EXPECT_NEAR(burst->loss_rate(), 0.05, 1e-16);
  EXPECT_DOUBLE_EQ(burst->mean_burst_packets(), 8);
  EXPECT_EQ(loss_processes().size(), 9U);
}

TEST(LossRegistry, UnknownModelListsTheKnown) {
  EXPECT_EQ(error_of({{"model", std::string("gilbert")}}),
            "spec.json: /loss/model: got \"gilbert\", want one of none, bernoulli, gilbert_elliott, four_state, "
            "timed_gilbert_elliott, trace, pattern, outage, schedule");
  EXPECT_EQ(error_of({{"loss_rate", 0.1}}), "spec.json: /loss/model: is missing");
  EXPECT_THROW(make_loss_process(Parameters(0.1, "spec.json: /loss")), ConfigError);
}

TEST(LossRegistry, ParametersOfAnotherModelAreErrors) {
  EXPECT_EQ(error_of({{"model", kNone}, {"loss_rate", 0.1}}),
            "spec.json: /loss/loss_rate: unknown name, want one of model");
  EXPECT_EQ(error_of({{"model", kBernoulli}, {"loss_rate", 0.1}, {"mean_burst_packets", 8.0}}),
            "spec.json: /loss/mean_burst_packets: unknown name, want one of loss_rate, model");
  EXPECT_EQ(error_of({{"model", kBernoulli}}), "spec.json: /loss/loss_rate: is missing");
}

TEST(LossRegistry, HalfGivenOrMixedGilbertElliottIsAnError) {
  EXPECT_EQ(error_of({{"model", kGilbertElliott}, {"p_good_to_bad", 0.1}, {"p_bad_to_good", 0.3}, {"loss_bad", 1.0}}),
            "spec.json: /loss/loss_good: is missing");
  EXPECT_EQ(error_of({{"model", kGilbertElliott}, {"loss_rate", 0.1}}),
            "spec.json: /loss/mean_burst_packets: is missing");
  EXPECT_EQ(error_of({{"model", kGilbertElliott}}), "spec.json: /loss/p_good_to_bad: is missing");
  EXPECT_EQ(error_of({{"model", kGilbertElliott}, {"loss_rate", 0.1}, {"mean_burst_packets", 8.0}, {"loss_bad", 0.5}}),
            "spec.json: /loss/loss_bad: got 0.5, want either loss_rate and mean_burst_packets, or p_good_to_bad, "
            "p_bad_to_good, loss_good and loss_bad, not some of both");
}

TEST(LossRegistry, ImpossibleRatesSayWhatIsPossible) {
  EXPECT_EQ(error_of({{"model", kGilbertElliott}, {"loss_rate", 0.9}, {"mean_burst_packets", 2.0}}),
            "spec.json: /loss: gilbert_elliott: mean_burst_packets: got 2, want a number of at least 9 "
            "at loss_rate 0.9");
  EXPECT_EQ(error_of({{"model", kGilbertElliott}, {"loss_rate", 1.0}, {"mean_burst_packets", 2.0}}),
            "spec.json: /loss: gilbert_elliott: loss_rate: got 1, want a number in [0, 1) with mean_burst_packets");
  EXPECT_EQ(error_of({{"model", kGilbertElliott}, {"loss_rate", 0.1}, {"mean_burst_packets", 0.5}}),
            "spec.json: /loss/mean_burst_packets: got 0.5, want a number in [1, 1e+06]");
  EXPECT_EQ(error_of({{"model", kBernoulli}, {"loss_rate", 1e-12}}),
            "spec.json: /loss/loss_rate: got 1e-12, want 0 or a number in [2^-32, 1]: draws have 32 bits");
  const std::string slow = error_of({{"model", kGilbertElliott},
                                     {"p_good_to_bad", 1e-7},
                                     {"p_bad_to_good", 2e-7},
                                     {"loss_good", 0.0},
                                     {"loss_bad", 1.0}});
  EXPECT_NE(slow.find("p_good_to_bad + p_bad_to_good: got 3e-07, want a number in [0.000001, 1.999999]"),
            std::string::npos)
      << slow;
  EXPECT_THROW(GilbertElliott({1, 1, 0, 1}), ConfigError);
  EXPECT_THROW(GilbertElliott({0, 0, 0, 1}), ConfigError);
  EXPECT_THROW(GilbertElliott({0.1, 1.1, 0, 1}), ConfigError);
  EXPECT_THROW(GilbertElliott({0.1, 0.1, 0, -0.1}), ConfigError);
  EXPECT_THROW(GilbertElliott({0.1, 0.1, std::nan(""), 1}), ConfigError);
}

}  // namespace
}  // namespace droptest::sim::loss_registry_test
