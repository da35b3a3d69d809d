// SPDX-License-Identifier: Apache-2.0
// All checks of a spec on this machine, or on the machines of a launch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/doctor/bandwidth.h"
#include "experiments/doctor/finding.h"

namespace droptest::experiments {

struct DoctorOptions {
  std::string spec_file;
  std::vector<std::string> overrides;  ///< "/pointer=value"
  std::string out;                     ///< folder of all results
  BandwidthPlan bandwidth;
  /// Command of a rank process that no launcher started. With a folder appended, it calls examine_as_rank() on it.
  std::vector<std::string> rank_command;
};

/// The all-reduce of one backend and number of ranks.
struct GroupBandwidth {
  std::string backend;
  int ranks = 1;
  std::vector<BandwidthPoint> points;
};

struct DoctorReport {
  std::vector<Finding> findings;
  std::vector<GroupBandwidth> bandwidths;
  int rank = 0;  ///< rank of this process under a launcher
  /// Whether rank 0 has this rank's findings, so that this rank need not print them.
  bool told_rank_0 = true;
};

/// Makes all checks that can be made: a failed check stops only the checks that need it. Settings that differ between
/// the runs of a sweep are checked for each run. Blocks for the measurement, and for a part of /backend/timeout_seconds
/// if peers or a server do not answer. Ranks: under a launcher all processes call it.
DoctorReport examine(const DoctorOptions& options);

/// The part of examine() in a process that examine() started as a rank.
void examine_as_rank(const std::string& folder, const BandwidthPlan& plan);

/// The record that docs/cli.md describes.
nlohmann::ordered_json to_json(const DoctorReport& report);

}  // namespace droptest::experiments
