// SPDX-License-Identifier: Apache-2.0
// The memory of the loss layer of a rank, before the run.
#pragma once

#include <cstdint>

#include "experiments/spec/dry_run.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// Bytes of the rank that takes most of them, as comm::LayerBuffers has them. Exact for collectives and messages; of
/// all-to-alls without a rank's own part.
struct LayerMemory {
  std::uint64_t messages = 0;    ///< copies that calls work with: one scratch for each group of ranks
  std::uint64_t remembered = 0;  ///< stale values and residuals of error feedback
  std::uint64_t on_host = 0;     ///< of both, what is in host memory on CUDA too: outer steps compute there
};

/// `run` is of the config. Throws: ConfigError.
LayerMemory layer_memory(const RunConfig& config, const LazyDryRun& run);
inline LayerMemory layer_memory(const RunConfig& config) { return layer_memory(config, LazyDryRun(config)); }

}  // namespace droptest::experiments
