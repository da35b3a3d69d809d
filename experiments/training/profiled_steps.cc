// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/profiled_steps.h"

#include <nlohmann/json.hpp>
#include <string>

#include "comm/rank_agreement.h"

namespace droptest::experiments {

void ProfiledSteps::begin_step(std::uint64_t step, comm::Stream* stream) {
  const auto& steps = config_.record.profile_steps;
  if (steps && step >= steps->first && step <= steps->second && !profile_.is_recording()) {
    const auto pause = network_.pause_clock();
    profile_.start_recording(clock_.meet(group_, "begin of a trace"), stream);
  }
  profile_.begin_step();
}

void ProfiledSteps::end_step(std::uint64_t step) {
  profile_.end_step(step);
  if (config_.record.profile_steps && step == config_.record.profile_steps->second) finish();
}

void ProfiledSteps::finish() {
  if (!profile_.is_recording()) return;
  const auto pause = network_.pause_clock();
  const StepProfile::Scope scope(profile_, TrainerPhase::kRecords);
  std::vector<nlohmann::json> ranks;
  for (const std::string& of_rank : comm::gather_texts(profile_.take_recording().dump(), group_, "trace")) {
    if (group_.rank() == 0) ranks.push_back(nlohmann::json::parse(of_rank));
  }
  if (group_.rank() == 0) on_trace_(ranks);
}

}  // namespace droptest::experiments
