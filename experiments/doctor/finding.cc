// SPDX-License-Identifier: Apache-2.0
#include "experiments/doctor/finding.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr std::array kHealths = {Health::kOk, Health::kWarning, Health::kFailed, Health::kSkipped};

Health health_of(const std::string& name) {
  for (const Health health : kHealths) {
    if (health_name(health) == name) return health;
  }
  throw CheckError("no state of health is called " + name);
}

}  // namespace

std::string_view health_name(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kWarning:
      return "warning";
    case Health::kFailed:
      return "failed";
    case Health::kSkipped:
      return "skipped";
  }
  return "unknown";
}

nlohmann::ordered_json to_json(const Finding& finding) {
  nlohmann::ordered_json record;
  record["check"] = finding.check;
  record["about"] = finding.about;
  record["status"] = health_name(finding.health);
  record["seen"] = finding.seen;
  record["advice"] = finding.advice;
  return record;
}

Finding finding_from_json(const nlohmann::json& record) {
  return {record.at("check"), record.at("about"), health_of(record.at("status")), record.at("seen"),
          record.at("advice")};
}

bool any_failed(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.health == Health::kFailed; });
}

}  // namespace droptest::experiments
