// SPDX-License-Identifier: Apache-2.0
#include "models/pipeline/schedule_timing.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "sim/error.h"

namespace droptest::models {
namespace {

/// The end of each result that an action may wait for.
class Results {
 public:
  explicit Results(int stages) : stages_(stages) {}

  void add(const Action& action, double end) {
    if (action.is_forward()) forward_[{action.stage, action.micro_batch}] = end;
    if (action.makes_input_gradient()) backward_[{action.stage, action.micro_batch}] = end;
  }
  /// The time at which the action's input is ready; absent: not known yet.
  std::optional<double> input_of(const Action& action) const {
    const bool forward = action.is_forward();
    const int from = forward ? action.stage - 1 : action.stage + 1;
    if (action.kind == Action::Kind::kWeightGradient || from < 0 || from == stages_) return 0;
    const auto& results = forward ? forward_ : backward_;
    const auto found = results.find({from, action.micro_batch});
    return found == results.end() ? std::nullopt : std::optional<double>(found->second);
  }

 private:
  int stages_;
  std::map<std::pair<int, int>, double> forward_, backward_;
};

}  // namespace

double ActionCosts::of(Action::Kind kind) const {
  switch (kind) {
    case Action::Kind::kForward:
      return forward;
    case Action::Kind::kInputGradient:
      return input_gradient;
    case Action::Kind::kWeightGradient:
      return weight_gradient;
    case Action::Kind::kBackward:
      return input_gradient + weight_gradient;
  }
  throw CheckError("an unknown kind of action");
}

double ScheduleTiming::makespan() const {
  double end = 0;
  for (const auto& row : ranks) end = std::max(end, row.empty() ? 0 : row.back().end);
  return end;
}

double ScheduleTiming::bubble_share() const {
  double busy = 0;
  for (const auto& row : ranks) {
    for (const TimedAction& action : row) busy += action.end - action.begin;
  }
  return 1 - busy / (makespan() * static_cast<double>(ranks.size()));
}

ScheduleTiming time_schedule(const PipelineSchedule& schedule, const ActionCosts& costs) {
  return time_actions(schedule, [&costs](const Action& action) { return costs.of(action.kind); });
}

ScheduleTiming time_actions(const PipelineSchedule& schedule, const std::function<double(const Action&)>& cost) {
  Results results(schedule.stages());
  ScheduleTiming timing;
  timing.ranks.resize(schedule.ranks.size());
  bool waits = true;
  for (bool moves = true; moves;) {
    moves = false;
    waits = false;
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      auto& done = timing.ranks[r];
      while (done.size() < schedule.ranks[r].size()) {
        const Action& action = schedule.ranks[r][done.size()];
        const std::optional<double> input = results.input_of(action);
        if (!input) {
          waits = true;
          break;
        }
        const double begin = std::max(*input, done.empty() ? 0 : done.back().end);
        done.push_back({action, begin, begin + cost(action)});
        results.add(action, done.back().end);
        moves = true;
      }
    }
  }
  if (!waits) return timing;
  std::string waiting;
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    if (timing.ranks[r].size() == schedule.ranks[r].size()) continue;
    waiting += (waiting.empty() ? "" : ", ") + std::string("rank ") + std::to_string(r) + " at \"" +
               schedule.ranks[r][timing.ranks[r].size()].text() + "\"";
  }
  throw ConfigError("pipeline schedule: ranks wait for each other: " + waiting);
}

}  // namespace droptest::models
