// SPDX-License-Identifier: Apache-2.0
// The steps of a run that are recorded for a trace.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/lossy_communicator.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/rank_clock.h"
#include "experiments/training/step_profile.h"

namespace droptest::experiments {

/// Records the profiled steps of one rank.
/// Owner: one rank's trainer. Ranks: all of the group, before and after the same steps. Everything is borrowed.
class ProfiledSteps {
 public:
  /// `on_trace`: gets the spans of each rank on rank 0, for trace_document().
  ProfiledSteps(const RunConfig& config, comm::Communicator& group, comm::LossyCommunicator& network, RankClock& clock,
                StepProfile& profile, const std::function<void(const std::vector<nlohmann::json>&)>& on_trace)
      : config_(config), group_(group), network_(network), clock_(clock), profile_(profile), on_trace_(on_trace) {}

  /// Begins to record before the first profiled step, or before a later one if the run continues there. `stream`: the
  /// model's device's; null: none.
  void begin_step(std::uint64_t step, comm::Stream* stream);
  void end_step(std::uint64_t step);
  /// Gives the spans to on_trace(), if steps were recorded. The trainer calls it after its last step.
  void finish();

 private:
  const RunConfig& config_;
  comm::Communicator& group_;
  comm::LossyCommunicator& network_;
  RankClock& clock_;
  StepProfile& profile_;
  const std::function<void(const std::vector<nlohmann::json>&)>& on_trace_;
};

}  // namespace droptest::experiments
