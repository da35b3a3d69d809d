// SPDX-License-Identifier: Apache-2.0
// The times at which the actions of a schedule begin and end, if messages take no time.
#pragma once

#include <functional>
#include <vector>

#include "models/pipeline/schedule.h"

namespace droptest::models {

/// The times of the actions of one micro-batch on one stage, in any unit.
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
  std::vector<std::vector<TimedAction>> ranks;  ///< the actions of each rank, in order

  double makespan() const;
  /// The share of the ranks' time, until the last rank ends, in which they do not compute.
  double bubble_share() const;
};

/// Each action begins as soon as its rank and its input are ready. The input of a forward pass is the previous stage's
/// result, that of a backward pass the gradient from the next stage. Throws: ConfigError that names the waiting actions
/// if ranks wait for ever.
ScheduleTiming time_schedule(const PipelineSchedule& schedule, const ActionCosts& costs);
/// time_schedule() with a time for each action.
ScheduleTiming time_actions(const PipelineSchedule& schedule, const std::function<double(const Action&)>& cost);

}  // namespace droptest::models
