// SPDX-License-Identifier: Apache-2.0
#include "sim/parameters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "sim/error.h"

namespace droptest::sim::parameters_test {
namespace {

Parameters with(Parameters::Value value) {
  Parameters::Members members;
  members.emplace("x", Parameters(std::move(value), "spec.json: /loss/x"));
  return {std::move(members), "spec.json: /loss"};
}

template <typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

double probability(Parameters::Value value) { return with(std::move(value)).probability("x"); }
std::string probability_error(Parameters::Value value) {
  return message_of([&] { probability(std::move(value)); });
}

TEST(Parameters, ProbabilitiesAreFractions) {
  EXPECT_EQ(probability(0.01), 0.01);
  EXPECT_EQ(probability(std::int64_t{0}), 0.0);
  EXPECT_EQ(probability(std::uint64_t{1}), 1.0);
  EXPECT_EQ(probability(1.0), 1.0);
  EXPECT_FALSE(std::signbit(probability(-0.0)));
}

TEST(Parameters, PercentIsTheSameDoubleAsItsFraction) {
  EXPECT_EQ(probability(std::string("5%")), 0.05);
  EXPECT_EQ(probability(std::string("0.7%")), 0.007);  // 0.7 / 100 is another double
  EXPECT_EQ(probability(std::string("0.01%")), 0.0001);
  EXPECT_EQ(probability(std::string("100%")), 1.0);
  EXPECT_EQ(probability(std::string("0%")), 0.0);
  EXPECT_EQ(probability(std::string("2e-3%")), 2e-5);
  EXPECT_EQ(probability(std::string("12.5%")), 0.125);
}

TEST(Parameters, OtherProbabilitiesAreErrorsWithTheValueGot) {
  const std::string want = ", want a number in [0, 1], or a text in percent like \"5%\"";
  const std::string at = "spec.json: /loss/x: got ";
  EXPECT_EQ(probability_error(1.2), at + "1.2" + want);
  EXPECT_EQ(probability_error(-0.1), at + "-0.1" + want);
  EXPECT_EQ(probability_error(std::int64_t{5}), at + "5" + want);
  EXPECT_EQ(probability_error(std::int64_t{-1}), at + "-1" + want);
  EXPECT_EQ(probability_error(std::nan("")), at + "nan" + want);
  EXPECT_EQ(probability_error(true), at + "true" + want);
  EXPECT_EQ(probability_error(std::monostate{}), at + "null" + want);
  EXPECT_EQ(probability_error(Parameters::List{}), at + "a list of 0 values" + want);
  EXPECT_EQ(probability_error(Parameters::Members{}), at + "an object of 0 members" + want);
  for (const char* text : {"5",    "0.05", "",    "%",    " 5%", "5 %",    "5%%",    "101%", "-1%", "five%",
                           "nan%", "inf%", "+5%", "0x5%", "5e%", "5e999%", "1e1e1%", "5,0%", "-%",  ".%"}) {
    EXPECT_EQ(probability_error(std::string(text)), at + '"' + text + '"' + want);
  }
}

TEST(Parameters, MissingMembersAreNamed) {
  EXPECT_EQ(message_of([] { with(1.0).probability("loss_rate"); }), "spec.json: /loss/loss_rate: is missing");
  EXPECT_EQ(message_of([] { with(1.0).member("a/b~c"); }), "spec.json: /loss/a~1b~0c: is missing");
  EXPECT_EQ(message_of([] { Parameters(1.0, "here").member("a"); }), "here/a: is missing");
}

TEST(Parameters, NumbersHaveARange) {
  EXPECT_EQ(with(2.5).number("x", 1, 3), 2.5);
  EXPECT_EQ(with(std::int64_t{3}).number("x", 1, 3), 3.0);
  EXPECT_EQ(message_of([] { with(3.5).number("x", 1, 3); }), "spec.json: /loss/x: got 3.5, want a number in [1, 3]");
  EXPECT_EQ(message_of([] { with(std::string("2")).number("x", 1, 3); }),
            "spec.json: /loss/x: got \"2\", want a number in [1, 3]");
  EXPECT_NE(message_of([] { with(std::numeric_limits<double>::infinity()).number("x", 1, HUGE_VAL); }), "no error");
  EXPECT_NE(message_of([] { with(std::nan("")).number("x", 1, 3); }), "no error");
}

TEST(Parameters, IntegersAreExactAndHaveARange) {
  EXPECT_EQ(with(std::int64_t{-4}).integer("x", -5, 3), -4);
  EXPECT_EQ(with(std::uint64_t{3}).integer("x", -5, 3), 3);
  EXPECT_EQ(with(3.0).integer("x", -5, 3), 3);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(with(kMost).integer("x", 0, kMost), kMost);
  EXPECT_EQ(message_of([] { with(2.5).integer("x", -5, 3); }),
            "spec.json: /loss/x: got 2.5, want an integer in [-5, 3]");
  EXPECT_EQ(message_of([] { with(std::int64_t{4}).integer("x", -5, 3); }),
            "spec.json: /loss/x: got 4, want an integer in [-5, 3]");
  EXPECT_NE(message_of([] { with(~std::uint64_t{0}).integer("x", -5, kMost); }), "no error");
  EXPECT_NE(message_of([] { with(1e300).integer("x", 0, kMost); }), "no error");
  EXPECT_NE(message_of([] { with(std::nan("")).integer("x", 0, kMost); }), "no error");
}

TEST(Parameters, TextsAreTexts) {
  EXPECT_EQ(with(std::string("none")).text("x"), "none");
  EXPECT_EQ(message_of([] { with(1.0).text("x"); }), "spec.json: /loss/x: got 1, want a text");
}

TEST(Parameters, UnknownMembersListTheAllowed) {
  EXPECT_NO_THROW(with(1.0).allow_only({"x", "y"}));
  EXPECT_EQ(message_of([] { with(1.0).allow_only({"z", "y"}); }), "spec.json: /loss/x: unknown name, want one of y, z");
}

TEST(Parameters, WantsAnObject) {
  EXPECT_NO_THROW(with(1.0).require_members("a loss process"));
  EXPECT_EQ(message_of([] { Parameters(std::string("none"), "spec.json: /loss").require_members("a loss process"); }),
            "spec.json: /loss: got \"none\", want an object: a loss process");
  EXPECT_TRUE(with(1.0).has("x"));
  EXPECT_FALSE(with(1.0).has("y"));
  EXPECT_FALSE(Parameters(1.0, "").has("y"));
}

}  // namespace
}  // namespace droptest::sim::parameters_test
