// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/time_estimate.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "comm/allowed_cores.h"
#include "comm/host_name.h"
#include "comm/json/json_text.h"
#include "experiments/doctor/machine_checks.h"
#include "experiments/records/run_records.h"

namespace droptest::cli {
namespace {

using experiments::RunConfig;
using nlohmann::json;

}  // namespace

TimeEstimate::TimeEstimate(const std::vector<Run>& runs, const std::string& folder) {
  for (const Run& run : runs) finished_[*run.shape];
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) take(entry.path().string());
  std::erase_if(finished_, [](const auto& shape) { return shape.second.count == 0; });
  measure(runs);
}

std::optional<double> TimeEstimate::seconds(const Run& run) const {
  if (const auto found = finished_.find(*run.shape); found != finished_.end()) {
    return found->second.mean() * static_cast<double>(run.config->training.steps);
  }
  if (!step_) return std::nullopt;
  return step_->wall_seconds * experiments::run_operations(*run.config) / measured_operations_;
}

std::optional<double> TimeEstimate::core_seconds(const Run& run, double jobs) const {
  const auto cores = static_cast<double>(comm::allowed_cores().size());
  if (finished_.contains(*run.shape)) return *seconds(run) * cores / jobs;
  if (!step_) return std::nullopt;
  return step_->processor_seconds * experiments::run_operations(*run.config) / measured_operations_;
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
    if (summary.at("status") != "completed" || summary.at("provenance").at("host") != comm::host_name()) return;
    const double seconds = summary.at("seconds").get<double>() / summary.at("steps").get<double>();
    const auto shape = finished_.find(experiments::shape_of(comm::load_json(run.spec())).dump());
    if (shape == finished_.end()) return;
    shape->second.add(seconds);
    ++records_;
  } catch (const std::exception&) {  // a damaged record has no times
  }
}

void TimeEstimate::measure(const std::vector<Run>& runs) {
  const RunConfig* largest = nullptr;
  std::set<std::string> shapes;
  for (const Run& run : runs) {
    if (run.is_finished || finished_.contains(*run.shape)) continue;
    shapes.insert(*run.shape);
    const double operations = experiments::step_operations(*run.config);
    if (largest == nullptr || operations >= experiments::step_operations(*largest)) largest = run.config;
  }
  if (largest == nullptr) return;
  shapes_ = shapes.size();
  try {
    step_ = experiments::measure_step(*largest);
    measured_operations_ = experiments::step_operations(*largest);
    if (!step_) {
      why_not_ = largest->device == experiments::Device::kCuda
                     ? "no run on such a GPU is finished here"
                     : "no such run is finished here, and a step is too long to be measured";
    }
  } catch (const std::exception& error) {
    why_not_ = error.what();
  }
}

}  // namespace droptest::cli
