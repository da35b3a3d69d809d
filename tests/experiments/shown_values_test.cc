// SPDX-License-Identifier: Apache-2.0
#include "experiments/watch/shown_values.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace droptest::experiments::shown_values_test {
namespace {

using nlohmann::json;

TEST(ShownValues, OfALineAreItsNumbersWithoutTheRest) {
  const std::string line = R"({"step":2,"tokens":20,"seconds":0.5,"train_loss":null,"gradient_norm":1.5,
      "classes":{"tp_forward":{"nmse":0.1}},"learning_rate":0.01,"divergence":{"max":3.0,"rms":1.0,"groups":{"rms":9}},
      "losses":{"tp_forward":{"packets":10,"lost":1,"z":0.5}},
      "ranks":[{"resident_bytes":5,"cpu_seconds":0.25,"phases":{"sent_bytes":7}},{"device_bytes":6}]})";
  EXPECT_EQ(shown_of_line(line), json::parse(R"({"step":2,"tokens":20,"seconds":0.5,"train_loss":null,
      "gradient_norm":1.5,"divergence":{"rms":1.0},"losses":{"tp_forward":{"packets":10,"lost":1}},
      "ranks":[{"resident_bytes":5,"cpu_seconds":0.25},{"device_bytes":6}]})"));
}

TEST(ShownValues, ALineOfAnotherFormIsReadAsAWhole) {
  const std::string first = R"({"step":2,"tokens":20,"seconds":0.5)";
  ASSERT_TRUE(shown_of_line(first + "}").is_object());
  for (const char* wrong :
       {R"(,"train_loss":"low"})", R"(,"divergence":[1]})", R"(,"divergence":{"rms":"x"}})", R"(,"losses":[]})",
        R"(,"losses":{"tp_forward":{"packets":1}}})", R"(,"losses":{"tp_forward":{"packets":1,"lost":-1}}})",
        R"(,"ranks":{}})", R"(,"ranks":[3]})", R"(,"ranks":[{"cpu_seconds":{}}]})", R"(,"train_loss":})", ""}) {
    EXPECT_TRUE(shown_of_line(first + wrong).is_null()) << wrong;
  }
  for (const char* wrong : {R"({"tokens":20,"seconds":0.5})", R"({"step":-1,"tokens":20,"seconds":0.5})",
                            R"({"step":2,"tokens":"20","seconds":0.5})", "[2]", "2", ""}) {
    EXPECT_TRUE(shown_of_line(wrong).is_null()) << wrong;
  }
  EXPECT_TRUE(shown_of_line(first + "}" + std::string(1, '\0')).is_null());
}

TEST(ShownValues, OfStatisticsAreTheCountsOfEachClass) {
  const std::string of_class = R"("classes":{"tp_forward":{"packets":10,"lost":1,"halves":{"reduce":{"lost":9}}}})";
  EXPECT_EQ(shown_of_statistics("{" + of_class + R"(,"schema_version":1,"links":[{"lost":3}]})"),
            json::parse(R"({"tp_forward":{"packets":10,"lost":1}})"));
  EXPECT_EQ(shown_of_statistics(R"({"classes":{},"schema_version":1})"), json::object());
  for (const std::string& wrong :
       {"{" + of_class + "}", "{" + of_class + R"(,"schema_version":2})", std::string(R"({"schema_version":1})"),
        std::string(R"({"schema_version":1,"classes":{"tp_forward":{"lost":1}}})"), std::string("{"),
        std::string(R"({"schema_version":1,"classes":{"tp_forward":7}})")}) {
    EXPECT_TRUE(shown_of_statistics(wrong).is_null()) << wrong;
  }
}

}  // namespace
}  // namespace droptest::experiments::shown_values_test
