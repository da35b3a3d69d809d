// SPDX-License-Identifier: Apache-2.0
// The cost of a run, before it runs: packets, floating-point operations, time.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// First transmissions of each traffic class that can lose packets, on all links over the whole run; the number of
/// retransmissions is not known before. Tensors of 16-bit floats count as half as many floats. Throws: ConfigError
/// if the network has no meaning.
std::map<std::string, std::uint64_t> expected_packets(const RunConfig& config);

/// Floating-point operations of all ranks in a training step: six for each parameter of a product and token, and those
/// of attention. Source: Kaplan et al. 2020, arXiv 2001.08361, section 2.1.
double step_operations(const RunConfig& config);
/// Floating-point operations of the whole run, its evaluations included: a forward pass is a third of a step.
double run_operations(const RunConfig& config);

/// The settings that runs of equal speed per step share: no weights, fates or number of steps. `spec`: a resolved one.
nlohmann::json shape_of(const nlohmann::json& spec);

/// The spec without names, seeds and learning rate, and without the parameters of loss processes if no rank keeps its
/// lost elements. Runs with equal results take equal memory and send equally many packets at first. `spec`: a resolved
/// one.
nlohmann::json without_rates(const nlohmann::json& spec);

/// The time of a training step of a run.
struct StepTime {
  double wall_seconds = 0;
  double processor_seconds = 0;
};

/// Trains some steps on random tokens with ranks that are threads of this process, and writes nothing.
/// Absent for a run on CUDA, and if a step would take longer than some seconds. Throws: as train().
std::optional<StepTime> measure_step(const RunConfig& config);

}  // namespace droptest::experiments
