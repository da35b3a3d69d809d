// SPDX-License-Identifier: Apache-2.0
// Objects of a trainer as a run's config has them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/lossy/lossy_communicator.h"
#include "experiments/data/corpus.h"
#include "experiments/files/manifest.h"
#include "experiments/run/rank_usage.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// The loss layer of the run; `membership`: how many layouts the training has behind it.
comm::LossyOptions lossy_options(const RunConfig& config, int membership);

/// The tokens or the examples that validation predicts.
std::unique_ptr<const EvaluationData> validation_data(const RunConfig& config, const Corpus& corpus);

/// The tokens after those of validation; absent: the config wants none.
std::optional<EvaluationBatches> selection_batches(const RunConfig& config, const Corpus& corpus);

RankUsageMeter::Scope usage_scope(const RunConfig& config);

/// Absent: the rank computes on the processor.
std::optional<int> device_of(const RunConfig& config);

/// Whether that rank of the world hears of the other ranks' overflows in that step: a pure function of the network's
/// seed, step and rank.
models::UpdateRule::Flags overflow_flags(const RunConfig& config, int rank, std::uint64_t step);

/// The share of a step's compute time that the backward pass of that block takes in a micro-batch. All blocks have
/// equal times; the head comes before the last one, with a time in proportion to its GEMM. 0 for a layer below 0.
double backward_share(const RunConfig& config, int layer);

/// Adds up all members.
void add_to(comm::VirtualTime& total, const comm::VirtualTime& more);

/// The mean over ranks, the same on every rank; exactly the value where all ranks have the same one, and not finite
/// where any rank's value is not. Ranks: all. Traffic is of class control.
double agree_on_mean(double value, comm::Communicator& group, std::string_view name);

/// The manifest in that file, which rank 0 reads. Ranks: all. Throws: ConfigError, on every rank.
Manifest manifest_of_root(const std::string& path, comm::Communicator& group);

}  // namespace droptest::experiments
