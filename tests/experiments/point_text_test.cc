// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/point_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"

namespace droptest::experiments::point_text_test {
namespace {

using nlohmann::json;

const std::vector<std::string> kHalves = {"/network/reduce/loss", "/network/gather/loss", "/parallel/tensor"};
const json kPoint = {{"/network/gather/loss", {{"model", "bernoulli"}, {"loss_rate", "5%"}}},
                     {"/network/reduce/loss", {{"model", "none"}}},
                     {"/parallel/tensor", 4}};

TEST(PointNames, EachNameIsTheShortestEndThatNoOtherPointerHas) {
  const json vector = comm::load_json(DROPTEST_VECTORS "/point_names.json");
  for (const json& expected : vector.at("sets")) {
    std::vector<std::string> pointers;
    for (const auto& [pointer, name] : expected.items()) pointers.push_back(pointer);
    for (const json& named : PointNames(pointers).to_json()) {
      EXPECT_EQ(named.at("name"), expected.at(named.at("pointer").get<std::string>()));
    }
  }
}

TEST(PointNames, APointTellsItsValuesApartInTheOrderOfTheSpec) {
  EXPECT_EQ(PointNames(kHalves).text(kPoint, json::array()),
            "reduce/loss: none, gather/loss: bernoulli loss_rate=5%, tensor: 4");
  EXPECT_EQ(PointNames(kHalves).text(json::object(), json::array()), "-");
  EXPECT_EQ(PointNames({"/training/steps", "/model/layers"}).text({{"/model/layers", 2}}, json::array()), "layers: 2")
      << "a part of a point";
}

TEST(PointNames, ALabelStandsAtTheFirstOfItsPointers) {
  const json labels = {{{"label", "late half"}, {"pointers", {"/parallel/tensor", "/network/gather/loss"}}}};
  EXPECT_EQ(PointNames(kHalves).text(kPoint, labels), "reduce/loss: none, late half");
  EXPECT_EQ(PointNames({"/parallel/tensor", "/network/gather/loss", "/network/reduce/loss"}).text(kPoint, labels),
            "late half, reduce/loss: none");
}

TEST(PointNames, PointersWithoutANameFollowTheOthersByTheSameRule) {
  EXPECT_EQ(PointNames().text(kPoint, json::array()),
            "gather/loss: bernoulli loss_rate=5%, reduce/loss: none, tensor: 4");
  EXPECT_EQ(PointNames({"/network/reduce/loss"}).text(kPoint, json::array()),
            "reduce/loss: none, gather/loss: bernoulli loss_rate=5%, tensor: 4");
}

TEST(PointNames, ARecordOfNamesGivesTheSameNames) {
  const json recorded = PointNames(kHalves).to_json();
  EXPECT_EQ(PointNames::from_json(recorded).to_json(), recorded);
  EXPECT_EQ(PointNames::from_json(recorded).text(kPoint, json::array()),
            PointNames(kHalves).text(kPoint, json::array()));
}

}  // namespace
}  // namespace droptest::experiments::point_text_test
