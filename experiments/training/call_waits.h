// SPDX-License-Identifier: Apache-2.0
// The times for which ranks wait for each other in the calls of a step.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "comm/metered_communicator.h"
#include "experiments/records/metrics.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {

/// A call of a rank's own thread, or a part of a started call. Units: nanoseconds of a clock that all ranks share.
struct TimedCall {
  std::uint64_t key = 0;  ///< equal on all ranks of the call; 0: the call has no counterparts
  std::int64_t begin = 0;
  std::int64_t duration = 0;
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  comm::MeteredCall::Part part = comm::MeteredCall::Part::kWhole;
  bool receives = false;  ///< whether the call is a message, which waits only for its sender
};

/// The share of each class's time in calls in which a rank waited, by rank. A rank waits until the last rank of the
/// group has begun the call, or until the sender of a message has. Both parts of a started call count as its time, but
/// only its wait can wait. Units: a fraction in [0, 1]; a class without calls is absent. `ranks`: the calls of each
/// rank.
std::vector<std::map<std::string, double>> waiting_shares(std::span<const std::vector<TimedCall>> ranks);

/// MetricsLine::ranks: the usage of each rank, by rank. A rank's seconds of `waiting` are its seconds of
/// `communication` times the shares that waiting_shares() finds in all ranks' `calls`. Ranks: all, of one build. The
/// messages are of class control.
nlohmann::json gather_usage(const RankUsage& usage, std::span<const TimedCall> calls, comm::Communicator& group);

}  // namespace droptest::experiments
