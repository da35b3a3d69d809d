// SPDX-License-Identifier: Apache-2.0
// The training of a whole run. Its replicas may leave and come back with shards of the state.
#pragma once

#include "comm/communicator.h"
#include "experiments/spec/resolve.h"
#include "experiments/training/trainer.h"

namespace droptest::experiments {

/// train() with the run's config. If replicas leave with shards of the state, the ranks that are there train over a
/// group of their own up to the checkpoint of the next change, cut it anew for the replicas after it, and go on; the
/// other ranks wait meanwhile. `config`: the run's, as this process has it. Ranks: all of the group; ranks that wait at
/// the end have an outcome without results.
TrainingOutcome train_run(const ResolvedRun& run, const RunConfig& config, const Corpus& corpus,
                          comm::Communicator& group, const TrainingHooks& hooks);

}  // namespace droptest::experiments
