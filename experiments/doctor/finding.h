// SPDX-License-Identifier: Apache-2.0
// The finding of one check of `droptest doctor`.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace droptest::experiments {

enum class Health : std::uint8_t {
  kOk,
  kWarning,  ///< a run works, but not as well as it could, or only as long as nothing else changes
  kFailed,   ///< a run would fail
  kSkipped,  ///< not checked, because another check failed
};
/// The name of a health: "ok", "warning", "failed", "skipped".
std::string_view health_name(Health health);

struct Finding {
  std::string check;  ///< "corpus", "devices", ...: docs/cli.md lists them
  std::string about;  ///< the object of the check, if there are several: "gloo, 4 ranks"; may be empty
  Health health = Health::kOk;
  std::string seen;
  std::string advice{};  ///< the next step; empty if all is well
};

nlohmann::ordered_json to_json(const Finding& finding);
/// The inverse of to_json().
Finding finding_from_json(const nlohmann::json& record);

bool any_failed(const std::vector<Finding>& findings);

}  // namespace droptest::experiments
