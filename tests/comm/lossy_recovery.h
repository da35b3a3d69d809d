// SPDX-License-Identifier: Apache-2.0
// Ranks over a lossy communicator with recovery, for tests of their results.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/lossy/lossy_communicator.h"

namespace droptest::comm {

constexpr auto kRecoveryClass = sim::TrafficClass::kTpForward;
constexpr std::chrono::milliseconds kRecoveryTimeout{20000};
using Floats = std::vector<float>;

std::shared_ptr<const sim::LossProcess> bernoulli(double p);

/// A network with packets of 16 floats on `path`, and these loss rates in the halves.
ClassNetwork recovery_network(std::string_view path, double p_reduce, double p_gather);

LossyOptions recovery_options(const ClassNetwork& network);

/// Runs `body` on each rank with a lossy communicator and its inner one, and then checks that both ends of each link
/// agree.
ClassStatistics run_lossy(int ranks, const ClassNetwork& network,
                          const std::function<void(LossyCommunicator&, Communicator&)>& body);

/// Values of both signs that differ by call, rank and element.
Floats recovery_values(int call, int rank, std::size_t count);

Floats all_reduce(Communicator& group, Floats data, const Message& message = {kRecoveryClass, "m", 1});

/// The errors that loss causes in an all-reduce of two ranks' values.
struct Damage {
  double energy = 0;      ///< sum of squared errors
  double worst = 0;       ///< largest error
  std::size_t wrong = 0;  ///< number of elements with errors larger than rounding
};
Damage damage_of(const ClassNetwork& network, std::size_t elems);

}  // namespace droptest::comm
