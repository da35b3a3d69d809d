// SPDX-License-Identifier: Apache-2.0
#include "comm/json/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/json/nearest_name.h"
#include "comm/json/pattern.h"
#include "comm/spec/network_schema.h"
#include "sim/error.h"
#include "tests/comm/error_text.h"

namespace droptest::comm::schema_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Schema schema(const std::string& text) {
  const std::vector<std::pair<std::string, nlohmann::json>> files = {{"s.json", parse_json(text, "s.json")}};
  return Schema(std::make_shared<const SchemaFiles>(files), "s.json");
}

/// "pointer: message" of each violation.
std::vector<std::string> violations(const Schema& rules, const std::string& document) {
  std::vector<std::string> lines;
  for (const Violation& violation : rules.check(parse_json(document, "d"))) {
    lines.push_back(violation.pointer + ": " + violation.message);
  }
  return lines;
}

TEST(Schema, AKeywordItDoesNotKnowIsABug) {
  EXPECT_THROW(schema(R"({"type": "object", "minProperties": 1})"), CheckError);
  EXPECT_THROW(schema(R"({"properties": {"a": {"format": "uri"}}})"), CheckError);
  EXPECT_THROW(schema(R"({"items": {"anyOf": [{"contains": {}}]}})"), CheckError);
  EXPECT_THROW(schema(R"({"type": "float"})"), CheckError);
  EXPECT_THROW(schema(R"json({"pattern": "(a|b)"})json"), CheckError);
  EXPECT_THROW(schema(R"({"properties": {"a": {"$ref": "#/$defs/nowhere"}}})"), CheckError);
  EXPECT_THROW(schema(R"({"$ref": "other.json"})"), CheckError);
  // A property may be named like an unknown keyword.
  EXPECT_NO_THROW(schema(R"({"properties": {"format": {"type": "string"}}})"));
}

TEST(Schema, AnAnnotationIsFoundAtEachMemberThatHasIt) {
  const Schema rules = schema(R"json({"x-identity": "root", "properties": {
      "own": {"x-identity": "a", "properties": {"inner": {"x-identity": "b"}, "silent": {}}},
      "referred": {"$ref": "#/$defs/rule"},
      "both": {"$ref": "#/$defs/rule", "x-identity": "own"},
      "either": {"anyOf": [{"properties": {"x": {"x-identity": "c"}}}, {"oneOf": [{"x-identity": "d"}]}]},
      "a/b": {"x-identity": "e"},
      "list": {"items": {"x-identity": "of an entry"}},
      "again": {"$ref": "#/$defs/loop"}},
      "$defs": {"rule": {"x-identity": "rule", "properties": {"deep": {"x-identity": "f"}}},
                "loop": {"properties": {"next": {"$ref": "#/$defs/loop"}, "end": {"x-identity": "g"}}}}})json");
  EXPECT_EQ(json(rules.annotations("x-identity")), parse_json(R"({"": "root", "/own": "a", "/own/inner": "b",
      "/referred": "rule", "/referred/deep": "f", "/both": "own", "/both/deep": "f", "/either": "d", "/either/x": "c",
      "/a~1b": "e", "/again/end": "g"})",
                                                              "d"));
  EXPECT_THAT(rules.annotations("x-words"), IsEmpty());
}

TEST(Schema, AMemberHasTheDefaultsOfItsRule) {
  const Schema rules = schema(R"json({"properties": {
      "a/b": {"properties": {"inner": {"properties": {"x": {"default": 1, "type": "number"}, "y": {}}}}}},
      "default": 7})json");
  EXPECT_EQ(rules.with_defaults(parse_json(R"({"y": 2})", "d"), "/a~1b/inner").dump(), R"({"x":1.0,"y":2})");
  EXPECT_EQ(rules.with_defaults(json::object()), json::object());
}

TEST(Schema, RangesAreExactForSixtyFourBitIntegers) {
  const Schema rules = schema(R"({"type": "integer", "minimum": -2, "maximum": 18446744073709551614})");
  EXPECT_THAT(violations(rules, "18446744073709551614"), IsEmpty());
  EXPECT_THAT(violations(rules, "18446744073709551615"),
              ElementsAre(": got 18446744073709551615, want an integer in [-2, 18446744073709551614]"));
  EXPECT_THAT(violations(rules, "-3"), testing::SizeIs(1));
  EXPECT_THAT(violations(rules, "7.0"), IsEmpty());
  EXPECT_THAT(violations(rules, "1e3"), IsEmpty());
  EXPECT_THAT(violations(rules, "7.5"), testing::SizeIs(1));
  EXPECT_THAT(violations(rules, "1.8446744073709552e19"), testing::SizeIs(1));
  EXPECT_THAT(violations(rules, "true"), testing::SizeIs(1));
}

TEST(Schema, AValueThatWouldNotBeUsedAsItIsWrittenIsRefused) {
  const Schema seed = schema(R"({"type": "integer", "minimum": 0, "maximum": 18446744073709551615})");
  const char* const wanted =
      "want an integer without a point or an exponent, as numbers with one are rounded from 2^53 on";
  for (const char* rounded : {"9007199254740993.0", "9007199254740992.0", "1e18", "9.223372036854775807e18"}) {
    EXPECT_THAT(violations(seed, rounded), ElementsAre(testing::HasSubstr(wanted))) << rounded;
  }
  EXPECT_THAT(violations(seed, "9007199254740991.0"), IsEmpty());
  EXPECT_THAT(violations(seed, "9007199254740993"), IsEmpty());
  EXPECT_THAT(violations(schema(R"({"type": "number"})"), "1e18"), IsEmpty());
  EXPECT_THAT(violations(schema(R"({"type": ["integer", "null"]})"), "1e18"), testing::SizeIs(1));
  EXPECT_THAT(violations(schema(R"({"anyOf": [{"type": "integer"}, {"type": "string"}]})"), "1e18"),
              testing::SizeIs(1));
  EXPECT_THAT(violations(schema(R"({"properties": {"a": {"type": "string"}}})"), R"({"a": "b\u0000c"})"),
              ElementsAre("/a: got \"b\\u0000c\", want text without the character U+0000, which ends names of files"));
}

TEST(Schema, EveryRangeIsSaidInWords) {
  const auto want = [](const std::string& rule) {
    const std::string line = violations(schema(rule), "\"x\"").at(0);
    return line.substr(line.find("want "));
  };
  EXPECT_EQ(want(R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})"), "want a number in (0, 1)");
  EXPECT_EQ(want(R"({"type": "number", "minimum": 0, "exclusiveMaximum": 1.5})"), "want a number in [0, 1.5)");
  EXPECT_EQ(want(R"({"type": "integer", "minimum": 1})"), "want an integer >= 1");
  EXPECT_EQ(want(R"({"type": "integer", "exclusiveMinimum": 1})"), "want an integer > 1");
  EXPECT_EQ(want(R"({"type": "number", "maximum": 1})"), "want a number <= 1");
  EXPECT_EQ(want(R"({"type": "integer", "multipleOf": 8})"), "want an integer, a multiple of 8");
  EXPECT_EQ(want(R"({"type": ["integer", "null"], "minimum": 0})"), "want an integer >= 0 or null");
  EXPECT_EQ(want(R"({"enum": ["a", "b"]})"), "want one of \"a\", \"b\"");
  EXPECT_EQ(want(R"({"const": 1})"), "want 1");
}

TEST(Schema, BoundsAreInclusiveOrNotAsSaid) {
  const Schema open = schema(R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})");
  EXPECT_THAT(violations(open, "0"), testing::SizeIs(1));
  EXPECT_THAT(violations(open, "1"), testing::SizeIs(1));
  EXPECT_THAT(violations(open, "5e-324"), IsEmpty());
  const Schema closed = schema(R"({"type": "number", "minimum": 0, "maximum": 1})");
  EXPECT_THAT(violations(closed, "0"), IsEmpty());
  EXPECT_THAT(violations(closed, "1"), IsEmpty());
  EXPECT_THAT(violations(closed, "1.0000000000000002"), testing::SizeIs(1));
  EXPECT_THAT(violations(schema(R"({"multipleOf": 8})"), "12"), testing::SizeIs(1));
  EXPECT_THAT(violations(schema(R"({"multipleOf": 8})"), "16"), IsEmpty());
}

TEST(Schema, ReportsEveryViolationWithItsPointer) {
  const Schema rules = schema(R"({"type": "object", "required": ["a", "b"], "additionalProperties": false,
      "properties": {"a": {"type": "integer"}, "b": {"type": "string"},
                     "list": {"type": "array", "minItems": 1, "items": {"type": "integer"}}}})");
  EXPECT_THAT(violations(rules, R"({"a": "x", "list": [1, "y", 2.5], "lisst": 0})"),
              ElementsAre("/a: got \"x\", want an integer",
                          "/lisst: got an unknown key; did you mean \"list\"? known keys: a, b, list",
                          "/list/1: got \"y\", want an integer", "/list/2: got 2.5, want an integer",
                          "/b: got nothing, want text"));
  EXPECT_THAT(violations(rules, R"({"a": 1, "b": "", "list": []})"),
              ElementsAre("/list: got [], want a list that is not empty"));
}

TEST(Schema, MembersThatItDoesNotNameCanBeAllowed) {
  const Schema rules = schema(
      R"({"type": "object", "required": ["a"], "additionalProperties": false, "properties": {
          "a": {"type": "integer"},
          "b": {"oneOf": [{"type": "object", "properties": {"c": {"type": "string"}}, "additionalProperties": false},
                          {"type": "object", "properties": {"d": {"type": "string"}}, "additionalProperties": false}]}}})");
  const auto allowed = [&rules](const std::string& document) {
    return rules.check(parse_json(document, "d"), UnknownMembers::kAllowed).size();
  };
  EXPECT_EQ(violations(rules, R"({"a": 1, "more": 2})").size(), 1);
  EXPECT_EQ(allowed(R"({"a": 1, "more": 2, "b": {"more": 3, "c": "x"}})"), 0);
  EXPECT_EQ(allowed(R"({"a": "x", "more": 2})"), 1) << "a member that it names";
  EXPECT_EQ(allowed(R"({"more": 2})"), 1) << "a member that it requires";
  EXPECT_EQ(allowed(R"({"a": 1, "b": {"c": 1, "d": 2}})"), 1) << "no branch allows these";
}

TEST(Schema, FiftyViolationsAreListedAndTheOthersCounted) {
  const Schema rules = schema(R"({"type": "array", "items": {"type": "integer"}})");
  const auto lines = [&rules](std::size_t wrong) {
    const std::string text = config_error_of([&] { require_valid(rules, json(wrong, "x"), "d.json"); });
    return std::pair(1 + std::count(text.begin(), text.end(), '\n'), text.substr(text.rfind('\n') + 1));
  };
  EXPECT_EQ(lines(0), std::pair(1L, std::string("(no error)")));
  EXPECT_EQ(lines(50), std::pair(50L, std::string("d.json: /49: got \"x\", want an integer")));
  EXPECT_EQ(lines(52), std::pair(51L, std::string("d.json: and 2 more")));
}

TEST(Schema, OneOfPicksTheBranchByItsTag) {
  const Schema& rules = network_schema();
  const auto loss = [&rules](const std::string& process) {
    return violations(rules, R"({"network": {"loss": )" + process + "}}");
  };
  EXPECT_THAT(loss(R"({"model": "bernoulli", "loss_rate": 0.5})"), IsEmpty());
  EXPECT_THAT(loss(R"({"model": "bernouli", "loss_rate": 0.5})"),
              ElementsAre("/network/loss/model: got \"bernouli\", want one of \"none\", \"bernoulli\", "
                          "\"gilbert_elliott\", \"four_state\", \"timed_gilbert_elliott\", \"trace\", "
                          "\"pattern\", \"outage\", \"schedule\"; did you mean \"bernoulli\"?"));
  EXPECT_THAT(loss("{}"), ElementsAre("/network/loss/model: got nothing, want one of \"none\", \"bernoulli\", "
                                      "\"gilbert_elliott\", \"four_state\", \"timed_gilbert_elliott\", "
                                      "\"trace\", \"pattern\", \"outage\", \"schedule\""));
  EXPECT_THAT(loss(R"({"model": "bernoulli"})"),
              ElementsAre("/network/loss/loss_rate: got nothing, want a fraction in [0, 1], or percent as text "
                          "(\"5%\")"));
  EXPECT_THAT(loss(R"({"model": "none", "loss_rate": 0})"),
              ElementsAre("/network/loss/loss_rate: got an unknown key; known keys: model"));
  EXPECT_THAT(loss("5"), ElementsAre("/network/loss: got 5, want a loss process: an object with \"model\" \"none\", "
                                     "\"bernoulli\", \"gilbert_elliott\", \"four_state\", "
                                     "\"timed_gilbert_elliott\", \"trace\", \"pattern\", \"outage\" or "
                                     "\"schedule\""));
}

TEST(Schema, OneOfPicksBetweenTwoWaysToSayOneThing) {
  const Schema& rules = network_schema();
  const auto loss = [&rules](const std::string& members) {
    return violations(rules, R"({"network": {"loss": {"model": "gilbert_elliott")" + members + "}}}");
  };
  EXPECT_THAT(loss(R"(, "loss_rate": "5%", "mean_burst_packets": 8)"), IsEmpty());
  EXPECT_THAT(loss(R"(, "p_good_to_bad": 0.1, "p_bad_to_good": 0.5)"), IsEmpty());
  EXPECT_THAT(loss(R"(, "loss_rate": "5%", "mean_burst_packets": 0.5)"),
              ElementsAre("/network/loss/mean_burst_packets: got 0.5, want a number in [1, 1000000000000]"));
  EXPECT_THAT(loss(R"(, "p_good_to_bad": 0.1)"),
              ElementsAre(HasSubstr("/network/loss/p_bad_to_good: got nothing, want a fraction")));
  EXPECT_THAT(loss(""), ElementsAre(HasSubstr("/network/loss: got {\"model\":\"gilbert_elliott\"}, want either "
                                              "\"p_good_to_bad\" and \"p_bad_to_good\", or \"loss_rate\" and "
                                              "\"mean_burst_packets\"")));
  EXPECT_THAT(loss(R"(, "p_good_to_bad": 0.1, "loss_rate": 0.2)"), ElementsAre(HasSubstr("want either")));
}

TEST(Schema, ProbabilitiesAreFractionsOrPercent) {
  const auto accepts = [](const std::string& value) {
    return network_schema()
        .check(parse_json(R"({"network": {"loss": {"model": "bernoulli",
                              "loss_rate": )" +
                              value + "}}}",
                          "d"))
        .empty();
  };
  for (const char* good : {"0", "1", "0.05", "\"5%\"", "\"0%\"", "\"100%\"", "\"100.00%\"", "\"0.01%\"", "\"99.9%\"",
                           "\"1e-3%\"", "\"7.%\"", "\"2.5e-3%\""}) {
    EXPECT_TRUE(accepts(good)) << good;
  }
  for (const char* bad : {"-0.1", "1.01", "5", "\"5\"", "\"5 %\"", "\"%\"", "\"-5%\"", "\"100.1%\"", "\"101%\"",
                          "\"1000%\"", "\"5%%\"", "\"five%\"", "true", "null", "[0.1]", "\"5%\\n\""}) {
    EXPECT_FALSE(accepts(bad)) << bad;
  }
}

TEST(Pattern, MatchesWhatItsSubsetSays) {
  const Pattern name("^[A-Za-z0-9_-][A-Za-z0-9._-]*$");
  EXPECT_TRUE(name.matches("a"));
  EXPECT_TRUE(name.matches("-a.b_C-9"));
  EXPECT_FALSE(name.matches(""));
  EXPECT_FALSE(name.matches(".hidden"));
  EXPECT_FALSE(name.matches("a/b"));
  EXPECT_FALSE(name.matches("a\n"));
  EXPECT_FALSE(name.matches("\u00e9"));
  EXPECT_TRUE(Pattern("^/").matches("/anything"));
  EXPECT_FALSE(Pattern("^/").matches("x/"));
  EXPECT_TRUE(Pattern("^a?b+c*$").matches("bbb"));
  EXPECT_TRUE(Pattern("^a?b+c*$").matches("abcc"));
  EXPECT_FALSE(Pattern("^a?b+c*$").matches("aab"));
  EXPECT_TRUE(Pattern("^[0-9a-f]{16}$").matches("0123456789abcdef"));
  EXPECT_FALSE(Pattern("^[0-9a-f]{16}$").matches("0123456789abcde"));
  EXPECT_FALSE(Pattern("^[0-9a-f]{16}$").matches("0123456789abcdef0"));
  EXPECT_FALSE(Pattern("^1\\.5$").matches("1x5"));
  for (const char* bad : {"abc", "^(a)", "^a|b", "^a{2,3}$", "^[^a]$", "^.", "^a$b", "^[a", "^\\d", "^a{}"}) {
    EXPECT_THROW(Pattern{bad}, CheckError) << bad;
  }
}

TEST(NearestName, FindsSlipsAndNothingElse) {
  const std::vector<std::string> known = {"loss", "learning_rate", "steps", "seed"};
  EXPECT_EQ(nearest_name("Loss", known), "loss");
  EXPECT_EQ(nearest_name("lsos", known), "loss");
  EXPECT_EQ(nearest_name("learningrate", known), "learning_rate");
  EXPECT_EQ(nearest_name("step", known), "steps");
  EXPECT_EQ(nearest_name("xyzzy", known), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), known), "");
}

}  // namespace
}  // namespace droptest::comm::schema_test
