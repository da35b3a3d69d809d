// SPDX-License-Identifier: Apache-2.0
// Checks whether this process was launched as the run needs it: the launcher's variables against the spec.
#pragma once

#include <optional>
#include <vector>

#include "comm/backend_registry.h"
#include "comm/rendezvous/launch_environment.h"
#include "experiments/doctor/finding.h"

namespace droptest::experiments {

struct LaunchChecks {
  std::vector<Finding> findings;  ///< findings "launch", one for each run that differs
  /// The launcher's variables; absent without a launcher, and if they are wrong.
  std::optional<comm::LaunchEnvironment> launch;
};

/// Reads the variables. Gives a finding "launch" if they are wrong, or if nothing was launched.
LaunchChecks read_launch(const comm::Environment& environment);

/// Finding "launch" of a run with so many ranks of this kind under `launch`.
Finding check_launch(const comm::LaunchEnvironment& launch, comm::RankKind rank_kind, int ranks);

}  // namespace droptest::experiments
