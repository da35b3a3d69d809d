// SPDX-License-Identifier: Apache-2.0
// The whole error texts of specs that break rules of the schemas, by tests/vectors/bad_specs.json.
#include <gtest/gtest.h>

#include <sstream>

#include "experiments/spec/spec.h"
#include "tests/comm/error_text.h"
#include "tests/sim/vector_file.h"

namespace droptest::experiments::spec_errors_test {
namespace {

using nlohmann::json;

constexpr const char* kFile = "spec.json";

/// The spec with another value at the pointer; null removes a member of an object.
json changed(json document, const std::string& pointer, const json& value) {
  const json::json_pointer place(pointer);
  if (place.empty()) return value;
  json& parent = document[place.parent_pointer()];
  if (value.is_null() && parent.is_object()) {
    parent.erase(place.back());
  } else {
    document[place] = value;
  }
  return document;
}

/// Lines that begin with a pointer, as `droptest validate` prints them.
std::string with_file(const std::string& error) {
  std::string text;
  std::istringstream lines(error);
  for (std::string line; std::getline(lines, line);) text += (text.empty() ? "" : "\n") + (kFile + (": " + line));
  return text;
}

TEST(SpecErrors, EveryBadSpecOfTheVectorFileHasItsWholeText) {
  const json vectors = sim::read_vectors("bad_specs.json");
  const json& specs = vectors.at("specs");
  ASSERT_GE(vectors.at("cases").size(), 300U);
  for (const json& bad : vectors.at("cases")) {
    const json document = changed(specs.at(bad.at("spec").get<std::string>()), bad.at("pointer"), bad.at("value"));
    EXPECT_EQ(config_error_of([&document] { (void)parse_spec(document.dump(), kFile); }), with_file(bad.at("error")))
        << bad.dump();
  }
}

}  // namespace
}  // namespace droptest::experiments::spec_errors_test
