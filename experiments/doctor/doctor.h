// SPDX-License-Identifier: Apache-2.0
// All checks of a spec on this machine, or on the machines of a launch.
#pragma once

#include <nlohmann/json.hpp>
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
  /// Command that, with a folder appended, calls examine_as_rank() on it: what the ranks are that are processes, where
  /// no launcher started them.
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
  int rank = 0;  ///< of this process under a launcher
  /// Whether rank 0 knows what this rank found, so that it need not say so itself.
  bool told_rank_0 = true;
};

/// Checks whatever can be checked: one that fails stops those alone that need it. What differs between the runs of a
/// sweep is checked for each. Blocks for the measurement, and for some of /backend/timeout_seconds where peers or a
/// server do not answer. Ranks: under a launcher all processes call it.
DoctorReport examine(const DoctorOptions& options);

/// The part of examine() that a process does which it started as a rank.
void examine_as_rank(const std::string& folder, const BandwidthPlan& plan);

/// The record that docs/cli.md describes.
nlohmann::ordered_json to_json(const DoctorReport& report);

}  // namespace droptest::experiments
