// SPDX-License-Identifier: Apache-2.0
#include "sim/traffic_class.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "sim/error.h"

namespace droptest::sim::traffic_class_test {
namespace {

TEST(TrafficClass, NamesAndClassesAreABijection) {
  std::set<std::string_view> names;
  for (const TrafficClass c : kAllTrafficClasses) {
    EXPECT_EQ(traffic_class_from_name(traffic_class_name(c)), c);
    names.insert(traffic_class_name(c));
  }
  EXPECT_EQ(names.size(), kAllTrafficClasses.size());
  EXPECT_EQ(traffic_class_name(TrafficClass::kTpForward), "tp_forward");
}

TEST(TrafficClass, ValuesArePartOfTheCounterAndNeverChange) {
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("control")), 0);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("tp_forward")), 1);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("tp_backward")), 2);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("dp_gradient")), 3);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("parameter_gather")), 4);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("pp_activation")), 5);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("pp_gradient")), 6);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("sequence_forward")), 7);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("embedding_gradient")), 8);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("sequence_backward")), 9);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("outer")), 10);
  EXPECT_EQ(static_cast<int>(traffic_class_from_name("tp_recomputation")), 11);
  for (std::size_t i = 0; i < kAllTrafficClasses.size(); ++i) {
    EXPECT_EQ(static_cast<std::size_t>(kAllTrafficClasses[i]), i) << "arrays are indexed by value";
  }
}

TEST(TrafficClass, UnknownNameListsTheKnown) {
  try {
    traffic_class_from_name("tp");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "traffic class: got \"tp\", want one of control, tp_forward, tp_backward, dp_gradient, parameter_gather, "
              "pp_activation, pp_gradient, sequence_forward, embedding_gradient, sequence_backward, outer, "
              "tp_recomputation");
  }
}

}  // namespace
}  // namespace droptest::sim::traffic_class_test
