// SPDX-License-Identifier: Apache-2.0
// The ranks of a run that only examine themselves and measure their all-reduces.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/rendezvous/launch_environment.h"
#include "comm/rendezvous/rendezvous.h"
#include "experiments/doctor/bandwidth.h"
#include "experiments/doctor/group_checks.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

/// Examines ranks as threads of this process.
GroupReport examine_threads(const RunConfig& config, const RankFacts& own, const BandwidthPlan& plan);

/// Examines ranks as processes that this one starts with the command, to which it appends the folder of
/// examine_as_rank(). Throws: CommError that names the logs of the ranks.
GroupReport examine_processes(const ResolvedRun& run, const comm::Rendezvous& rendezvous,
                              const std::vector<std::string>& rank_command);

/// Examines the group of a launch, of which this process is one rank. `id` tells the group from others that meet in the
/// same place. The report is rank 0's.
GroupReport examine_joined(const RunConfig& config, const comm::LaunchEnvironment& launch,
                           const comm::Rendezvous& rendezvous, const std::string& id, const RankFacts& own,
                           const BandwidthPlan& plan);

}  // namespace droptest::experiments
