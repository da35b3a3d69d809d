// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/marks_text.h"

#include <nlohmann/json.hpp>
#include <set>

#include "experiments/records/run_records.h"

namespace droptest::cli {

std::string marks_suffix(std::span<const nlohmann::json> summaries) {
  std::set<std::string> marks;
  for (const nlohmann::json& summary : summaries) {
    if (!summary.is_object()) continue;
    for (const nlohmann::json& warning : summary.value("warnings", nlohmann::json::array())) {
      if (warning.contains("mark")) marks.insert(experiments::mark_text(warning.at("mark").get<std::string>()));
    }
  }
  std::string text;
  for (const std::string& mark : marks) text += (text.empty() ? " (" : ", ") + mark;
  return text.empty() ? text : text + ")";
}

}  // namespace droptest::cli
