// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/best_over.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// All trainings of one value at one point.
struct Candidate {
  json values = json::object();
  std::vector<std::size_t> runs;
};

/// The number at validation.<name>; absent if it was not measured or is not finite.
std::optional<double> loss_of(const json& summary, const char* name) {
  const json loss = summary.is_object() ? summary.at("validation").value(name, json()) : json();
  return loss.is_number() ? std::optional(loss.get<double>()) : std::nullopt;
}

/// The mean loss over the candidate's runs; absent if a run has none.
std::optional<double> mean_loss(const Candidate& candidate, std::span<const json> summaries, const char* name) {
  double sum = 0;
  for (const std::size_t run : candidate.runs) {
    const std::optional<double> loss = loss_of(summaries[run], name);
    if (!loss || summaries[run].value("status", "") != "completed") return std::nullopt;
    sum += *loss;
  }
  return sum / static_cast<double>(candidate.runs.size());
}

template <class Item>
Item& found_or_added(std::vector<std::pair<json, Item>>& items, const json& key) {
  const auto found = std::find_if(items.begin(), items.end(), [&key](const auto& item) { return item.first == key; });
  return found != items.end() ? found->second : items.emplace_back(key, Item()).second;
}

}  // namespace

std::vector<BestPoint> best_points(const SweepPlan& plan, std::span<const json> summaries) {
  DROPTEST_CHECK(summaries.size() == plan.runs.size(), "a summary, or null, for each run");
  std::vector<std::pair<json, std::vector<std::pair<json, Candidate>>>> points;
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    json rest = plan.runs[i].point;
    json values = json::object();
    for (const std::string& pointer : plan.best_over) {
      values[pointer] = rest.at(pointer);
      rest.erase(pointer);
    }
    Candidate& candidate = found_or_added(found_or_added(points, rest), values);
    candidate.values = values;
    const bool is_trained_once = std::any_of(candidate.runs.begin(), candidate.runs.end(), [&](std::size_t run) {
      return plan.runs[run].same_as == plan.runs[i].same_as;
    });
    if (!is_trained_once) candidate.runs.push_back(i);
  }
  std::vector<BestPoint> result;
  for (const auto& [rest, candidates] : points) {
    BestPoint best;
    best.point = rest;
    best.labels = plan.runs[candidates.front().second.runs.front()].run.labels;
    for (const auto& [values, candidate] : candidates) {
      const std::optional<double> loss = mean_loss(candidate, summaries, "selection_loss");
      if (!loss || (!best.values.is_null() && *loss >= best.mean_selection_loss)) continue;
      best.values = values;
      best.labels = plan.runs[candidate.runs.front()].run.labels;
      best.runs = candidate.runs;
      best.mean_selection_loss = *loss;
      best.mean_validation_loss = mean_loss(candidate, summaries, "final_loss");
    }
    result.push_back(std::move(best));
  }
  return result;
}

}  // namespace droptest::experiments
