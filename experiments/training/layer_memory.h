// SPDX-License-Identifier: Apache-2.0
// The memory of the loss layer of a rank, before the run.
#pragma once

#include <cstdint>

#include "experiments/spec/dry_run.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Bytes of the rank that takes most of them, as comm::LossLayerBuffers has them. Exact for collectives and messages; a
/// rank's own part of an all-to-all is not counted.
struct LayerMemory {
  std::uint64_t messages = 0;    ///< copies that calls work with: one scratch for each group of ranks
  std::uint64_t remembered = 0;  ///< stale values and residuals of error feedback
  std::uint64_t on_host = 0;     ///< the part of both that is in host memory on CUDA, too: that of outer steps
};

/// The memory of the run's loss layer. `run`: the config's dry run. Throws: ConfigError.
LayerMemory layer_memory(const RunConfig& config, const LazyDryRun& run);
inline LayerMemory layer_memory(const RunConfig& config) { return layer_memory(config, LazyDryRun(config)); }

}  // namespace droptest::experiments
