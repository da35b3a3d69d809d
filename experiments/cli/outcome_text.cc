// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/outcome_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "experiments/cli/marks_text.h"
#include "experiments/records/run_records.h"

namespace droptest::cli {
namespace {

/// Numbers from here on, which only losses of diverged runs reach, have fewer digits with an exponent.
constexpr double kMostInDigits = 1e6;

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

}  // namespace

std::string loss_text(const nlohmann::json& value) {
  if (!value.is_number()) return "-";
  const double number = value.get<double>();
  return format(std::fabs(number) < kMostInDigits ? "%.4f" : "%.4e", number);
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  char text[64];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%lld h %02lld min", whole / 3600, whole % 3600 / 60);
  } else if (whole >= 60) {
    std::snprintf(text, sizeof text, "%lld min %02lld s", whole / 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld s", whole);
  }
  return text;
}

std::string status_text(const nlohmann::json& summary) {
  return summary.value("status", "unknown") + marks_suffix({&summary, 1});
}

std::string outcome_text(const nlohmann::json& summary) {
  const std::string status = summary.value("status", "unknown");
  std::string text = status_text(summary);
  if (status == "failed") return text + ": " + summary.value("error", "");
  if (status == "diverged") text += " at step " + summary.at("diverged_step").dump();
  const nlohmann::json& validation = summary.at("validation");
  std::string steps = summary.at("steps").dump() + " steps";
  if (const std::uint64_t skipped = summary.value("/loss_scale/skipped_steps"_json_pointer, std::uint64_t{0})) {
    steps += " (" + std::to_string(skipped) + " skipped: overflow)";
  }
  std::string speed;  // a program of the user's own need not count tokens
  if (const nlohmann::json& rate = summary.at("tokens_per_second"); rate.is_number()) {
    speed = format(", %.0f", rate.get<double>()) + " tokens/s";
  }
  const nlohmann::json& seconds = summary.at("seconds");
  if (seconds.is_number()) speed += ", " + duration_text(seconds.get<double>());
  return text + ": validation loss " + loss_text(validation.at("final_loss")) + " (best " +
         loss_text(validation.at("best_loss")) + "), train loss " + loss_text(summary.at("train").at("final_loss")) +
         ", " + steps + speed;
}

std::string point_text(const experiments::SweepPlan& plan, const experiments::PlannedRun& planned) {
  return experiments::PointNames(plan.swept).text(planned.point, planned.run.labels);
}

std::string seeds_text(const experiments::Seeds& seeds) {
  return experiments::seeds_text(experiments::seeds_json(seeds));
}

std::string table_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line += row[c];
      if (c + 1 < row.size()) line += std::string(widths[c] - row[c].size() + 2, ' ');
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace droptest::cli
