// SPDX-License-Identifier: Apache-2.0
// The times of collectives, without tensors and without ranks: only the virtual clocks, for any number of ranks.
#pragma once

#include <functional>
#include <vector>

#include "comm/lab/fate_simulation.h"
#include "comm/lossy/clock/collective_timing.h"
#include "comm/lossy/clock/time_model.h"

namespace droptest::comm {

struct SimulatedTime {
  std::vector<double> seconds;  ///< increase of the latest rank's clock, by trial
  VirtualTime total;            ///< time of all trials, as collect_time() gives it
};

/// The clocks of the ranks in run_collective_experiment(), bit for bit, with given compute times; measured compute time
/// is zero. Cost: time in the number of messages, memory in the number of ranks; if links send again, memory also in
/// the number of links. Throws: ConfigError for a network or a model that has no meaning.
SimulatedTime simulate_time(const FateSimulation& simulation, const TimeModel& model);
/// Simulates the time, and visits each message with its trial.
SimulatedTime simulate_time(const FateSimulation& simulation, const TimeModel& model,
                            const std::function<void(std::uint64_t trial, const Transmission&)>& visit);

}  // namespace droptest::comm
