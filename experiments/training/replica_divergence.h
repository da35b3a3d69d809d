// SPDX-License-Identifier: Apache-2.0
// The differences between the ranks' copies of parameters that should be equal.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "comm/parallel_layout.h"
#include "experiments/records/metrics.h"
#include "models/parameter.h"

namespace droptest::experiments {

/// The divergence of all parameters, and of each group of parameters.
struct ReplicaDivergence {
  Divergence all;
  std::map<std::string, Divergence> groups;  ///< groups with replicated parameters, by Parameter::group
};

/// Whether the first stage's copy of the tied embedding is compared with the values of the stage with the head, too.
enum class TiedCopies : std::uint8_t { kLeftOut, kCompared };

/// Compares the copies of each parameter: all ranks have a copy of a replicated parameter, and only data-parallel
/// replicas have copies of a part that is cut over tensor-parallel ranks. Exactly zero for equal copies, and for one
/// rank. `max` is the largest absolute difference between any two copies, `rms` the root mean square over elements and
/// pairs of copies.
/// Ranks: all of `groups`, with the same parameters; the result is the same on each. Traffic is of class control.
ReplicaDivergence measure_replica_divergence(std::span<const models::Parameter<float>> parameters,
                                             const comm::ParallelGroups& groups,
                                             TiedCopies tied = TiedCopies::kLeftOut);

}  // namespace droptest::experiments
