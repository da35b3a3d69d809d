// SPDX-License-Identifier: Apache-2.0
#include "experiments/doctor/launch_checks.h"

#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// The value, or an empty text if it is not set.
std::string value_of(const comm::Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

Finding without_launcher(const comm::Environment& environment) {
  const std::string nodes = value_of(environment, "SLURM_JOB_NUM_NODES");
  if (nodes.empty()) return {"launch", "", Health::kOk, "no launcher: ranks are started on this machine", ""};
  const std::string seen = "in a Slurm job of " + nodes + (nodes == "1" ? " node" : " nodes") + ", but not by srun";
  if (nodes == "1") return {"launch", "", Health::kOk, seen + ": ranks are started on this machine", ""};
  return {"launch", "", Health::kWarning, seen + ": all ranks would run on this node",
          "start ranks on all nodes: srun droptest run SPEC"};
}

}  // namespace

LaunchChecks read_launch(const comm::Environment& environment) {
  LaunchChecks checks;
  try {
    checks.launch = comm::launch_environment(environment);
    if (!checks.launch) checks.findings.push_back(without_launcher(environment));
  } catch (const ConfigError& error) {
    checks.findings.push_back({"launch", "", Health::kFailed, error.what(),
                               "set all of the launcher's variables, or none of them (env -u NAME droptest ...)"});
  }
  return checks;
}

Finding check_launch(const comm::LaunchEnvironment& launch, comm::RankKind rank_kind, int ranks) {
  const std::string seen =
      launch.launcher + ": rank " + std::to_string(launch.rank) + " of " + std::to_string(launch.world_size) +
      (launch.local_rank < 0 ? "" : ", rank " + std::to_string(launch.local_rank) + " on its machine");
  if (rank_kind == comm::RankKind::kThreads) {
    if (launch.world_size == 1) return {"launch", "", Health::kOk, seen, ""};
    return {"launch", "", Health::kWarning,
            seen + "; ranks of this backend are threads, so each process would do the whole run",
            "start one process, or choose a backend whose ranks are processes"};
  }
  if (launch.world_size != ranks) {
    return {"launch", "", Health::kFailed, seen + "; the spec has " + std::to_string(ranks) + " ranks",
            "start " + std::to_string(ranks) + " processes, or change /parallel to " +
                std::to_string(launch.world_size) + " ranks"};
  }
  return {"launch", "", Health::kOk, seen, ""};
}

}  // namespace droptest::experiments
