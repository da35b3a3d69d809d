// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/time_estimate.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "comm/json/json_text.h"
#include "experiments/doctor/machine_checks.h"
#include "experiments/records/run_records.h"
#include "experiments/run/core_shares.h"

namespace droptest::cli {
namespace {

using experiments::PlannedRun;
using experiments::RunConfig;
using experiments::SweepPlan;
using nlohmann::json;

std::string key_of(const PlannedRun& planned) { return experiments::shape_of(planned.run.spec).dump(); }

}  // namespace

TimeEstimate::TimeEstimate(const SweepPlan& plan, const std::vector<json>& summaries, const std::string& folder) {
  for (const PlannedRun& planned : plan.runs) finished_[key_of(planned)];
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) take(entry.path().string());
  std::erase_if(finished_, [](const auto& shape) { return shape.second.count == 0; });
  measure(plan, summaries);
}

std::optional<double> TimeEstimate::seconds(const PlannedRun& planned) const {
  const RunConfig& config = planned.run.config;
  if (const auto found = finished_.find(key_of(planned)); found != finished_.end()) {
    return found->second.mean() * static_cast<double>(config.training.steps);
  }
  if (!step_) return std::nullopt;
  return step_->wall_seconds * experiments::run_operations(config) / measured_operations_;
}

std::optional<double> TimeEstimate::core_seconds(const PlannedRun& planned, double jobs) const {
  const auto cores = static_cast<double>(experiments::allowed_cores().size());
  if (finished_.contains(key_of(planned))) return *seconds(planned) * cores / jobs;
  if (!step_) return std::nullopt;
  return step_->processor_seconds * experiments::run_operations(planned.run.config) / measured_operations_;
}

std::string TimeEstimate::basis() const {
  std::string text;
  if (records_ > 0) {
    double low = 1e300;
    double high = 0;
    for (const auto& [key, speeds] : finished_) {
      low = std::min(low, speeds.low / speeds.mean());
      high = std::max(high, speeds.high / speeds.mean());
    }
    char spread[96];
    std::snprintf(spread, sizeof spread, "they took %.2f to %.2f times their mean", low, high);
    text = "from " + std::to_string(records_) + (records_ == 1 ? " finished run" : " finished runs") +
           " of the same shape on this machine (" + spread + ")";
  }
  if (step_) {
    text += (text.empty() ? "" : "; others ") + std::string("from a training step measured here, ") +
            (shapes_ > 1 ? "scaled by floating-point operations; may be off by a factor of 3"
                         : "may be off by a factor of 2");
  }
  if (!why_not_.empty()) text += (text.empty() ? "" : "; no estimate for others: ") + why_not_;
  return text;
}

void TimeEstimate::Speeds::add(double seconds) {
  sum += seconds;
  low = std::min(low, seconds);
  high = std::max(high, seconds);
  ++count;
}

void TimeEstimate::take(const std::string& folder) {
  const experiments::RunDirectory run{folder};
  try {
    if (!experiments::has_result(run)) return;
    const json summary = *experiments::read_summary(run);
    if (summary.at("status") != "completed" || summary.at("provenance").at("host") != experiments::this_host()) return;
    const double seconds = summary.at("seconds").get<double>() / summary.at("steps").get<double>();
    const auto shape = finished_.find(experiments::shape_of(comm::load_json(run.spec())).dump());
    if (shape == finished_.end()) return;
    shape->second.add(seconds);
    ++records_;
  } catch (const std::exception&) {  // a damaged record has no times
  }
}

void TimeEstimate::measure(const SweepPlan& plan, const std::vector<json>& summaries) {
  const PlannedRun* largest = nullptr;
  std::set<std::string> shapes;
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    if (!summaries[i].is_null() || finished_.contains(key_of(plan.runs[i]))) continue;
    shapes.insert(key_of(plan.runs[i]));
    const double operations = experiments::step_operations(plan.runs[i].run.config);
    if (largest == nullptr || operations >= experiments::step_operations(largest->run.config)) largest = &plan.runs[i];
  }
  if (largest == nullptr) return;
  shapes_ = shapes.size();
  try {
    step_ = experiments::measure_step(largest->run.config);
    measured_operations_ = experiments::step_operations(largest->run.config);
    if (!step_) {
      why_not_ = largest->run.config.device == experiments::Device::kCuda
                     ? "no run on such a GPU is finished here"
                     : "no such run is finished here, and a step is too long to be measured";
    }
  } catch (const std::exception& error) {
    why_not_ = error.what();
  }
}

}  // namespace droptest::cli
