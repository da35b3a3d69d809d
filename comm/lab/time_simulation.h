// SPDX-License-Identifier: Apache-2.0
// What collectives take, without tensors and without ranks: the virtual clocks alone, for any number of ranks.
#pragma once

#include <functional>
#include <vector>

#include "comm/lab/fate_simulation.h"
#include "comm/lossy/clock/collective_timing.h"
#include "comm/lossy/clock/time_model.h"

namespace droptest::comm {

struct SimulatedTime {
  std::vector<double> seconds;  ///< by trial: how much later the latest rank is
  VirtualTime total;            ///< of all trials, as collect_time() gives it
};

/// The clocks that the ranks of run_collective_experiment() have, bit for bit, with given compute times; where those
/// are to be measured, nothing is computed. Cost: time in the number of messages, memory in the number of ranks; where
/// links send again also in theirs. Throws: ConfigError for a network or a model that has no meaning.
SimulatedTime simulate_time(const FateSimulation& simulation, const TimeModel& model);
/// The same, and shows each message with its trial.
SimulatedTime simulate_time(const FateSimulation& simulation, const TimeModel& model,
                            const std::function<void(std::uint64_t trial, const TimedMessage&)>& visit);

}  // namespace droptest::comm
