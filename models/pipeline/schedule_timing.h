// SPDX-License-Identifier: Apache-2.0
// When each action of a schedule begins and ends, where messages take no time.
#pragma once

#include <functional>
#include <vector>

#include "models/pipeline/schedule.h"

namespace droptest::models {

/// Of one micro-batch on one stage, in any unit of time.
struct ActionCosts {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;

  double of(Action::Kind kind) const;
};

struct TimedAction {
  Action action;
  double begin = 0;
  double end = 0;
};

struct ScheduleTiming {
  std::vector<std::vector<TimedAction>> ranks;  ///< in the order of their actions

  double makespan() const;
  /// The share of the ranks' time, until the last one is done, in which they do not compute.
  double bubble_share() const;
};

/// Each action begins as soon as its rank and its inputs are ready: the stage before has computed the micro-batch
/// forward, or the stage behind has computed the gradient of its input. Throws: ConfigError that names the actions
/// at which ranks wait, where they wait for ever.
ScheduleTiming time_schedule(const PipelineSchedule& schedule, const ActionCosts& costs);
/// The same with a time for each action.
ScheduleTiming time_actions(const PipelineSchedule& schedule, const std::function<double(const Action&)>& cost);

}  // namespace droptest::models
