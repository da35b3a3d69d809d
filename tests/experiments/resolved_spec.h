// SPDX-License-Identifier: Apache-2.0
// A small spec for tests of resolved specs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/json/json_text.h"
#include "experiments/spec/resolve.h"
#include "experiments/spec/spec.h"

namespace droptest::experiments {

/// A spec with two tensor-parallel ranks and 5 % loss.
inline const char* const kTwoRanks = R"({"name": "t", "data": {"text": "a.txt"}, "parallel": {"tensor": 2},
    "network": {"loss": {"model": "bernoulli", "loss_rate": "5%"}}})";

/// The resolved spec `text`, with overrides as in --set. Throws: ConfigError.
inline ResolvedRun resolved(const std::string& text, const std::vector<std::string>& overrides = {}) {
  nlohmann::json document = comm::parse_json(text, "s");
  for (const std::string& assignment : overrides) apply_override(document, assignment);
  return resolve(document, "s.json");
}

/// The id of the run of two ranks with these overrides.
inline std::string id_with(const std::vector<std::string>& overrides) { return resolved(kTwoRanks, overrides).run_id; }

}  // namespace droptest::experiments
