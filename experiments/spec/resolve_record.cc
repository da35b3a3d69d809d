// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/json/json_text.h"
#include "experiments/process/program_path.h"
#include "experiments/spec/section_resolvers.h"

namespace droptest::experiments {

using comm::quote_json;
using nlohmann::json;

void check_profile(Resolution& resolution) {
  constexpr std::uint64_t kMostSteps = 1000;  // ranks hold the spans of these steps in memory
  if (!resolution.spec["record"].contains("profile_steps")) return;
  const json& steps = resolution.spec["record"]["profile_steps"];
  const auto step = [&steps](std::size_t i) { return steps[i].get<std::uint64_t>(); };
  if (steps.size() == 2 && step(0) <= step(1) && step(1) - step(0) < kMostSteps) return;
  resolution.report("/record/profile_steps", "got " + quote_json(steps) +
                                                 ", want the first step and the last one, not before it, of at most " +
                                                 std::to_string(kMostSteps) + " steps");
}

void check_alerts(Resolution& resolution) {
  const json alerts = resolution.spec.value("alerts", json::array());
  for (std::size_t i = 0; i < alerts.size(); ++i) {
    const std::string pointer = "/alerts/" + std::to_string(i);
    const std::string when = alerts[i]["when"];
    if (alerts[i]["do"] == "checkpoint" && !resolution.spec.contains("checkpoint")) {
      resolution.report(pointer + "/do", "got \"checkpoint\", want a section /checkpoint, which may be {}, too");
    }
    if (alerts[i].contains("threshold") && (when == "any" || when == "not_finite")) {
      resolution.report(pointer + "/threshold", "got " + quote_json(alerts[i]["threshold"]) + " with when \"" + when +
                                                    "\", which has no threshold of its own; leave it out");
    }
    if (resolution.files == nullptr || !alerts[i]["do"].is_object()) continue;
    const std::string program = alerts[i]["do"]["command"][0];
    if (program_path(program)) continue;
    resolution.report(pointer + "/do/command/0",
                      "got " + quote_json(program) +
                          ", want the path of a program from the working folder, or the name of one "
                          "in the folders of PATH");
  }
}

}  // namespace droptest::experiments
