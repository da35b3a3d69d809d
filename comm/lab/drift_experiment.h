// SPDX-License-Identifier: Apache-2.0
// Drift between replicas of parameters that lossy collectives update, without training.
#pragma once

#include <chrono>
#include <cstdint>

#include "comm/lab/estimate.h"
#include "comm/lossy/network.h"

namespace droptest::comm {

/// Data parallelism with sharded updates, in miniature. In each step every rank draws a standard normal gradient. A
/// lossy reduce-scatter gives each rank the mean gradient of the part that it owns, the owner adds it to its part, and
/// a lossy all-gather sends the parts to all: parameters walk at random. Source: the setting of Weintraub et al. 2025,
/// arXiv 2507.07114: unbiased reduction, broadcast of bounded drift.
struct DriftExperiment {
  ClassNetwork network;
  int ranks = 8;
  std::uint64_t elements = 8192;  ///< number of parameters of type float
  std::uint64_t steps = 60;       ///< steps of each trial; the last one is measured
  std::uint64_t trials = 20;
  std::uint64_t seed = 1;
  std::chrono::milliseconds timeout{60000};  ///< longest wait for a rank
};

/// Mean squares over elements, in units of the mean square of one step of the owner.
struct DriftExperimentResult {
  Estimate between_replicas;  ///< mean square of the difference of two ranks that both received the part
  Estimate from_owner;        ///< mean square of the difference of a receiving rank from the owner
  Estimate step;              ///< mean square of an owner's step x ranks: 1 without loss
};

/// Expected mean squares for independent losses of rate q of the gather half under `stale`. A replica is as old as its
/// run of losses, which is geometric. Two replicas of ages a and b differ by |a - b| steps: 2q / (1 - q^2). A replica
/// differs from the owner by a steps: q / (1 - q). Source: geometric ages; docs/cli.md.
/// Errors: q < 1, else infinity.
double expected_drift_between_replicas(double loss_rate);
double expected_drift_from_owner(double loss_rate);

/// Runs the trials on local ranks (threads); each begins with equal replicas of zeros and fresh fates.
/// Expected drift exists on `direct`, per receiver, for independent losses and `stale` in the gather half; the expected
/// step exists for zero and inverse_probability in the reduce half.
/// Determinism: equal experiments give equal bits.
/// Throws: ConfigError for fewer than 3 ranks (two receivers have to differ), no elements, steps or trials, or a
/// network that has no meaning.
DriftExperimentResult run_drift_experiment(const DriftExperiment& experiment);

}  // namespace droptest::comm
