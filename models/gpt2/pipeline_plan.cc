// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/pipeline_plan.h"

#include <algorithm>

namespace droptest::models {

std::vector<int> PipelinePlan::stages_of(int rank) const {
  std::vector<int> own;
  for (int stage = 0; stage < program.stages(); ++stage) {
    if (program.rank_of(stage) == rank) own.push_back(stage);
  }
  return own;
}

Keep PipelinePlan::keep_of(int stage) const {
  const auto& steps = program.ranks.at(static_cast<std::size_t>(rank_of(stage)));
  const bool splits = std::any_of(steps.begin(), steps.end(), [&](const PipelineStep& step) {
    return step.action.stage == stage && step.action.kind == Action::Kind::kWeightGradient;
  });
  return splits ? Keep::kForSplitBackward : Keep::kForBackward;
}

SentPast PipelinePlan::sent_past_of(int stage) const {
  const int last = program.stages() - 1;
  if (last == 0) return {};
  const int forward_user = std::max(stage, 1);
  const int backward_user = std::min(stage, last - 1);
  return {program.has_substitute({forward_user, Action::Kind::kForward}),
          program.has_substitute({backward_user, Action::Kind::kBackward})};
}

}  // namespace droptest::models
