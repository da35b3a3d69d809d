// SPDX-License-Identifier: Apache-2.0
// An all-reduce under loss without training: its losses, error and time, measured and compared with the closed forms.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "comm/lab/collective_theory.h"
#include "comm/lab/estimate.h"
#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/network.h"
#include "comm/lossy/statistics/loss_statistics.h"

namespace droptest::comm {

struct CollectiveExperiment {
  ClassNetwork network;
  int ranks = 8;
  std::uint64_t elements = 65536;  ///< number of elements of type float
  ReduceOp op = ReduceOp::kSum;    ///< a sum or a mean
  Inputs inputs = Inputs::kIndependent;
  std::uint64_t trials = 100;
  std::uint64_t seed = 1;
  std::optional<TimeModel> time;             ///< absent: no clock
  std::chrono::milliseconds timeout{60000};  ///< longest wait for a rank
};

struct CollectiveExperimentResult {
  /// sum of |result - exact|^2 over sum of |exact|^2, over elements, ranks and trials. Its standard error is that of a
  /// ratio of means (delta method), with trials as independent samples.
  Estimate nmse;
  /// Largest |result - exact| of an element of any rank over the root mean square of the exact result, as a mean over
  /// trials. A transform flattens this peak, while the NMSE stays.
  Estimate peak_error;
  /// Fractions of contributions that reach a result and of results that reach a receiver, own ones included; and the
  /// product of the two. Late packets do not arrive; there is no expected value if there is a deadline.
  Estimate survival_reduce;
  Estimate survival_gather;
  Estimate survival;
  ClassStatistics statistics;  ///< statistics of all trials
  std::vector<double> nmse_by_trial;
  /// Virtual seconds of one all-reduce, by the latest rank; absent without a clock. The expected value exists without
  /// recovery, deadline, stragglers and compute time, on equal links; the slowest of many links has no closed form.
  std::optional<Estimate> seconds;
  std::optional<VirtualTime> time;  ///< virtual time of all trials
};

/// Runs the trials on local ranks (threads). Inputs are standard normal, from Purpose::kSyntheticInput.
/// Determinism: equal experiments give equal bits.
/// Throws: ConfigError for no ranks, elements or trials, for a maximum, and for a network that has no meaning.
CollectiveExperimentResult run_collective_experiment(const CollectiveExperiment& experiment);

/// Runs the trials without tensors: survival, losses and virtual time only from the fates, for as many ranks as there
/// are world ranks. Errors are NaN: `nmse` has only its expected value. Fates and clocks are those of the trials of
/// run_collective_experiment(); measured compute time is zero.
CollectiveExperimentResult simulate_collective_experiment(const CollectiveExperiment& experiment);

}  // namespace droptest::comm
