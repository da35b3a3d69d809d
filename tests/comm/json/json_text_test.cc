// SPDX-License-Identifier: Apache-2.0
#include "comm/json/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/comm/error_text.h"

namespace droptest::comm::json_text_test {
namespace {

std::string error_of(const std::string& text) {
  return config_error_of([&text] { (void)parse_json(text, "f.json"); });
}

TEST(JsonText, ReadsEveryIntegerOfSixtyFourBitsExactly) {
  EXPECT_EQ(parse_json("18446744073709551615", "f").get<std::uint64_t>(), 18446744073709551615ULL);
  EXPECT_EQ(parse_json("9007199254740993", "f").get<std::uint64_t>(), 9007199254740993ULL);
  EXPECT_EQ(parse_json("-9223372036854775808", "f").get<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(parse_json("18446744073709551616", "f").is_number_float());
}

TEST(JsonText, SyntaxErrorsNameLineAndColumn) {
  EXPECT_THAT(error_of("{\n  \"a\": 1,\n  \"b\": tru\n}"),
              testing::StartsWith("f.json: line 3, column 11: not JSON: "));
  EXPECT_THAT(error_of("{\"a\": 1,}"), testing::StartsWith("f.json: line 1, column 9: not JSON: "));
  EXPECT_THAT(error_of(""), testing::StartsWith("f.json: line 1, column 1: not JSON: "));
  EXPECT_THAT(error_of("{} {}"), testing::StartsWith("f.json: line 1, column 4: not JSON: "));
  EXPECT_THAT(error_of("{\"a\": NaN}"), testing::StartsWith("f.json: line 1, column 7: not JSON: "));
  EXPECT_THAT(error_of("[Infinity]"), testing::StartsWith("f.json: line 1, column 2: not JSON: "));
  EXPECT_THAT(error_of("{'a': 1}"), testing::HasSubstr("not JSON"));
  EXPECT_THAT(error_of("[\"\xff\"]"), testing::HasSubstr("not JSON"));
}

TEST(JsonText, NothingHidesBehindAByteOfZero) {
  using namespace std::string_literals;  // NOLINT: texts with zeros
  EXPECT_EQ(error_of("{\"a\": 1}\n\0"s), "f.json: line 2, column 1: not JSON: a byte 0, want none in a text");
  for (const std::string& text :
       {"{}\0"s, "{}\0{\"b\": 2}"s, "[1, 2] \0\0"s, "\0{}"s, "\0"s, "[1\0, 2]"s, "\"a\0b\""s}) {
    EXPECT_THAT(error_of(text), testing::HasSubstr("not JSON")) << text;
  }
  // The error is found at any place of a text.
  const std::string whole = R"({"a": [1, 2.5, {"b": "text"}], "c": null})";
  for (std::size_t place = 0; place <= whole.size(); ++place) {
    std::string damaged = whole;
    damaged.insert(place, 1, '\0');
    EXPECT_THAT(error_of(damaged), testing::HasSubstr("not JSON")) << place;
  }
}

TEST(JsonText, NumbersBeyondADoubleAreRefused) {
  EXPECT_EQ(error_of("{\"a\": 1e400}"), "f.json: line 1, column 11: got 1e400, want a number in a double's range");
  EXPECT_THAT(error_of("[-1e999]"), testing::HasSubstr("got -1e999, want a number in a double's range"));
  EXPECT_EQ(parse_json("1e-400", "f").get<double>(), 0.0);
}

TEST(JsonText, AKeyThatAppearsTwiceIsRefusedWithItsPlace) {
  EXPECT_EQ(error_of("{\"a\": {\"b\": 1, \"c\": 2, \"b\": 3}}"),
            "f.json: /a/b: the key \"b\" appears twice in its object");
  EXPECT_EQ(error_of("[0, {\"x/y\": 1, \"x/y\": 1}]"), "f.json: /1/x~1y: the key \"x/y\" appears twice in its object");
  EXPECT_EQ(error_of("[{\"a\": 1}, {\"a\": 1}]"), "(no error)");
  EXPECT_EQ(error_of("{\"a\": {\"a\": {\"a\": 1}}}"), "(no error)");
}

TEST(JsonText, NestingHasALimit) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_EQ(error_of(nested(kMaxJsonDepth)), "(no error)");
  EXPECT_EQ(error_of(nested(kMaxJsonDepth + 1)), "f.json: nested deeper than 64 levels");
  EXPECT_THAT(error_of(std::string(1000000, '[')), testing::HasSubstr("nested deeper"));
}

// The right-hand sides are results of Python 3.11's json.dumps(v, sort_keys=True, separators=(",", ":"),
// ensure_ascii=False).
TEST(JsonText, CanonicalTextIsPythons) {
  const auto canonical = [](const char* text) { return canonical_json(parse_json(text, "f")); };
  EXPECT_EQ(canonical("{\"b\": [1, 2.0, null, true], \"a\": {}, \"B\": []}"),
            "{\"B\":[],\"a\":{},\"b\":[1,2.0,null,true]}");
  EXPECT_EQ(canonical("[1e-8, 0.0001, 0.00001, 0.1, 1e15, 1e16, 123456789.125]"),
            "[1e-08,0.0001,1e-05,0.1,1000000000000000.0,1e+16,123456789.125]");
  EXPECT_EQ(canonical("[5e-324, 1.7976931348623157e308, -0.0, 0.30000000000000004, 1e100]"),
            "[5e-324,1.7976931348623157e+308,-0.0,0.30000000000000004,1e+100]");
  EXPECT_EQ(canonical("[9007199254740993.0, 2e22, 18446744073709551615]"),
            "[9007199254740992.0,2e+22,18446744073709551615]");
  EXPECT_EQ(canonical("\"q\\\"\\\\\\n\\u0001\\u00e9/\""), "\"q\\\"\\\\\\n\\u0001é/\"");
}

TEST(JsonText, CanonicalNumbersReadBackExactly) {
  // A walk over the doubles by their bits, with a stride that visits all exponents.
  for (std::uint64_t bits = 1; bits < 0x7ff0000000000000ULL; bits += 0x0003a5f1c3d7e9b1ULL) {
    const double value = std::bit_cast<double>(bits);
    EXPECT_EQ(parse_json(canonical_json(value), "f").get<double>(), value);
  }
}

TEST(JsonText, QuotesAreShortenedBetweenCharacters) {
  EXPECT_EQ(quote_json("abcdefgh", 8), "\"abcd...");
  EXPECT_EQ(quote_json("ab\u00e9\u00e9\u00e9\u00e9", 8), "\"ab\u00e9...");
  EXPECT_EQ(quote_json("abc", 8), "\"abc\"");
}

}  // namespace
}  // namespace droptest::comm::json_text_test
