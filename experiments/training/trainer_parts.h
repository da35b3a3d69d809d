// SPDX-License-Identifier: Apache-2.0
// Objects of a trainer, made from a run's config.
#pragma once

#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/lossy/lossy_communicator.h"
#include "experiments/files/manifest.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/rank_usage.h"

namespace droptest::experiments {

/// The loss layer of the run; `membership`: how many layouts the training has behind it.
comm::LossyOptions lossy_options(const RunConfig& config, int membership);

RankUsageMeter::Scope usage_scope(const RunConfig& config);

/// The index of the rank's device; absent: the rank computes on the processor.
std::optional<int> device_of(const RunConfig& config);

/// Whether that rank of the world hears of the other ranks' overflows in that step: a pure function of the network's
/// seed, step and rank.
models::UpdateRule::Flags overflow_flags(const RunConfig& config, int rank, std::uint64_t step);

/// The manifest in that file, which rank 0 reads. Ranks: all. Throws: ConfigError, on every rank.
Manifest manifest_of_root(const std::string& path, comm::Communicator& group);

}  // namespace droptest::experiments
