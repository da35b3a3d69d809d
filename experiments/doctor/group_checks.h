// SPDX-License-Identifier: Apache-2.0
// Checks of a group of ranks: their hosts and cores, whether their builds agree, and their speed in an all-reduce.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "experiments/doctor/bandwidth.h"
#include "experiments/doctor/finding.h"

namespace droptest::experiments {

/// Facts of one rank, as it reports them.
struct RankFacts {
  std::string host;
  std::vector<int> cores;         ///< cores that it may run on
  std::string build;              ///< version and commit of droptest, versions of its libraries
  std::vector<Finding> findings;  ///< findings of its own checks that are not ok
};

/// The facts of this process; the caller adds findings.
RankFacts own_facts();

struct GroupReport {
  std::vector<RankFacts> ranks;
  std::vector<double> clock_offsets_seconds;  ///< difference of each rank's wall clock from that of rank 0
  std::vector<BandwidthPoint> points;
  std::uint64_t left_out_above_bytes = 0;  ///< larger sizes would have filled the memory; 0: none were left out
};

nlohmann::ordered_json to_json(const GroupReport& report);
/// The inverse of to_json().
GroupReport group_report_from_json(const nlohmann::json& record);

/// Examines a group. Ranks: all; rank 0's plan counts, and all get the same report. Throws: the communicator's errors.
GroupReport examine_group(comm::Communicator& group, const RankFacts& own, const BandwidthPlan& plan);

/// Whether all ranks are on one machine.
bool on_one_host(const GroupReport& report);

/// Findings "hosts", "cores", "builds", "clocks" and "all-reduce", and the findings of other ranks that rank 0 does not
/// have, named after their rank. A host's name does not matter to ranks that are all on it.
std::vector<Finding> group_findings(const GroupReport& report, int threads_per_rank);

}  // namespace droptest::experiments
