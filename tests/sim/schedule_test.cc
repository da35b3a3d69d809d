// SPDX-License-Identifier: Apache-2.0
// Schedules and outages, and the expected counts of links with a changing process.
#include "sim/loss/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/loss_registry.h"
#include "sim/loss/lost_count_theory.h"
#include "sim/loss/outage.h"
#include "sim/loss/pattern.h"

namespace droptest::sim::schedule_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kReduce, 0, 1};

Parameters text(std::string value) { return {std::move(value), "x"}; }
Parameters number(std::int64_t value) { return {value, "x"}; }
Parameters bernoulli(double rate, const std::string& where) {
  return {Parameters::Members{{"model", text("bernoulli")}, {"loss_rate", Parameters(rate, where + "/loss_rate")}},
          where};
}
Parameters phase(std::int64_t from, double rate, std::size_t index) {
  const std::string where = "s: /loss/phases/" + std::to_string(index);
  return {Parameters::Members{{"from_step", number(from)}, {"loss", bernoulli(rate, where + "/loss")}}, where};
}
Parameters window(std::int64_t from, std::int64_t to, std::size_t index) {
  return {Parameters::Members{{"from_step", number(from)}, {"to_step", number(to)}},
          "s: /loss/windows/" + std::to_string(index)};
}
std::unique_ptr<LossProcess> make(Parameters::Members members) {
  return make_loss_process(Parameters(std::move(members), "s: /loss"));
}
std::string error_of(Parameters::Members members) {
  try {
    make(std::move(members));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Schedule, EachStepHasTheProcessOfItsPhase) {
  const auto schedule =
      make({{"model", text("schedule")},
            {"phases",
             Parameters(Parameters::List{phase(3, 0.1, 0), phase(5, 0, 1), phase(9, 0.2, 2)}, "s: /loss/phases")}});
  const auto rate = [&schedule](std::uint64_t step) { return schedule->at_step(step).loss_rate(); };
  EXPECT_EQ(rate(0), 0);
  EXPECT_EQ(rate(2), 0);
  EXPECT_EQ(rate(3), 0.1);
  EXPECT_EQ(rate(4), 0.1);
  EXPECT_EQ(rate(5), 0);
  EXPECT_EQ(rate(8), 0);
  EXPECT_EQ(rate(9), 0.2);
  EXPECT_EQ(rate(1000000), 0.2);
  EXPECT_TRUE(schedule->can_lose());
  EXPECT_EQ(schedule->loss_rate(), 0.2);
  EXPECT_EQ(schedule->describe(),
            "schedule(from step 0: none, from step 3: bernoulli(loss_rate=0.1), from step 5: bernoulli(loss_rate=0), "
            "from step 9: bernoulli(loss_rate=0.2))");
}

TEST(Schedule, CanLoseIfAnyPhaseCan) {
  const auto first_only = make(
      {{"model", text("schedule")}, {"phases", Parameters(Parameters::List{phase(0, 0.1, 0), phase(5, 0, 1)}, "p")}});
  EXPECT_EQ(first_only->loss_rate(), 0);
  EXPECT_TRUE(first_only->can_lose());
}

TEST(Schedule, WrongPhasesAreErrorsWithTheirPlace) {
  EXPECT_EQ(error_of({{"model", text("schedule")}}), "s: /loss/phases: is missing");
  EXPECT_EQ(error_of({{"model", text("schedule")},
                      {"phases", Parameters(Parameters::List{phase(5, 0.1, 0), phase(5, 0.2, 1)}, "p")}}),
            "s: /loss/phases/1/from_step: got 5, want a step after 5, where the phase before begins");
  EXPECT_EQ(error_of({{"model", text("schedule")}, {"phases", Parameters(Parameters::List{phase(0, 1.5, 0)}, "p")}}),
            "s: /loss/phases/0/loss/loss_rate: got 1.5, want a number in [0, 1], or a text in percent like \"5%\"");
}

TEST(Outage, LosesEverythingInItsWindowsOnly) {
  const auto outage =
      make({{"model", text("outage")},
            {"windows", Parameters(Parameters::List{window(0, 2, 0), window(5, 6, 1), window(6, 8, 2)}, "w")}});
  const std::string expected = "1100011100";
  for (std::uint64_t step = 0; step < expected.size(); ++step) {
    EXPECT_EQ(outage->at_step(step).loss_rate(), expected[step] - '0') << step;
  }
  const auto weak = make({{"model", text("outage")},
                          {"windows", Parameters(Parameters::List{window(1, 2, 0)}, "w")},
                          {"loss_rate", Parameters(std::string("30%"), "l")},
                          {"otherwise", bernoulli(0.01, "s: /loss/otherwise")}});
  EXPECT_EQ(weak->at_step(0).loss_rate(), 0.01);
  EXPECT_EQ(weak->at_step(1).loss_rate(), 0.3);
  EXPECT_EQ(weak->at_step(2).loss_rate(), 0.01);
}

TEST(Outage, WindowsAreInOrderAndNotEmpty) {
  const auto with = [](Parameters::List windows) {
    return error_of({{"model", text("outage")}, {"windows", Parameters(std::move(windows), "s: /loss/windows")}});
  };
  EXPECT_EQ(with({window(4, 4, 0)}).substr(0, 45), "s: /loss/windows/0/to_step: got 4, want an in");
  EXPECT_EQ(with({window(4, 6, 0), window(5, 7, 1)}).substr(0, 47), "s: /loss/windows/1/from_step: got 5, want an in");
  EXPECT_NE(with({}).find("s: /loss/windows: got a list"), std::string::npos) << with({});
}

TEST(LostCountTheory, OneStretchHasTheCorrelationOfAllItsPackets) {
  const GilbertElliott chain(rates_of_burst(0.05, 8));
  LostCountTheory theory;
  for (std::uint64_t first = 0; first < 1000; first += 50)
    theory.add(chain, 0, 1, kLink, {first, 0, first / 50, {}}, 50);
  EXPECT_DOUBLE_EQ(theory.total().mean, 50);
  EXPECT_DOUBLE_EQ(theory.total().variance, chain.lost_count_variance(1000));
}

TEST(LostCountTheory, MessagesThatStartAnewAreIndependent) {
  const GilbertElliott chain(rates_of_burst(0.05, 8));
  LostCountTheory theory;
  for (std::uint64_t m = 0; m < 20; ++m) theory.add(chain, 0, 1, kLink, {m << 32, m << 32, 0, {}}, m < 5 ? 10 : 50);
  EXPECT_DOUBLE_EQ(theory.total().mean, 0.05 * (50 + 750));
  EXPECT_DOUBLE_EQ(theory.total().variance, 5 * chain.lost_count_variance(10) + 15 * chain.lost_count_variance(50));
}

TEST(LostCountTheory, PhasesAddUpPiecewise) {
  const Bernoulli low(0.01);
  const Bernoulli high(0.3);
  LostCountTheory theory;
  theory.add(low, 0, 1, kLink, {0, 0, 0, {}}, 100);
  theory.add(high, 0, 1, kLink, {100, 0, 1, {}}, 40);
  theory.add(low, 0, 1, kLink, {140, 0, 2, {}}, 60);
  EXPECT_DOUBLE_EQ(theory.total().mean, 1.6 + 12);
  EXPECT_DOUBLE_EQ(theory.total().variance, 160 * 0.01 * 0.99 + 40 * 0.3 * 0.7);
}

TEST(LostCountTheory, FixedFatesAreCountedExactly) {
  const Pattern pattern(1, 9, 4);
  LostCountTheory theory;
  theory.add(pattern, 0, 1, kLink, {0, 0, 0, {}}, 4);
  EXPECT_EQ(theory.total().mean, 0);
  theory.add(pattern, 0, 1, kLink, {4, 0, 1, {}}, 11);
  EXPECT_EQ(theory.total().mean, 2);
  EXPECT_EQ(theory.total().variance, 0);
}

}  // namespace
}  // namespace droptest::sim::schedule_test
