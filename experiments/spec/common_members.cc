// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/common_members.h"

#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"

namespace droptest::experiments {

using nlohmann::json;

Seeds resolve_seeds(json& spec, const json& given, const std::string& where, std::vector<std::string>& errors) {
  json& seeds = spec["seeds"];
  if (given.contains("seed") && seeds.size() == 3) {
    errors.push_back(where + ": /seed: got " + comm::quote_json(given["seed"]) +
                     ", which changes nothing, since /seeds has weights, data and network; want one of the two");
  }
  const auto take = [&](const char* name) {
    if (!seeds.contains(name)) seeds[name] = spec["seed"];
    return seeds[name].get<std::uint64_t>();
  };
  const Seeds result = {take("weights"), take("data"), take("network")};
  spec.erase("seed");
  return result;
}

void refuse_several_runs(json& spec, const std::string& where, std::vector<std::string>& errors) {
  const auto report = [&](const std::string& text) { errors.push_back(where + ": " + text); };
  if (spec.contains("sweep")) report("/sweep: got a sweep, want a spec of one run");
  for (const json& repeats : spec.value("repeat", json::object())) {
    if (repeats != 1) report("/repeat: got repeats, want one run");
  }
  if (spec.contains("search")) report("/search: got a search, want a spec of one run");
  if (spec.contains("extends")) report("/extends: got the name of a file, want a file that is merged already");
  for (const char* several : {"sweep", "repeat", "search"}) spec.erase(several);
}

}  // namespace droptest::experiments
