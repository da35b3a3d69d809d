// SPDX-License-Identifier: Apache-2.0
// One rank's training of a run.
#pragma once

#include <functional>

#include "comm/communicator.h"
#include "experiments/data/corpus.h"
#include "experiments/records/metrics.h"
#include "experiments/spec/run_config.h"
#include "experiments/training/training_hooks.h"
#include "experiments/training/training_outcome.h"

namespace droptest::experiments {

/// Trains the run over `group`; config.network loses packets between the ranks.
/// Ranks: all of the group, with equal arguments. Losses, norms and the decision to end are the same on every rank.
/// Determinism: with `local` the losses are a pure function of (config, corpus), bit for bit. They depend neither on
/// backend.threads_per_rank nor on interruptions. Errors: those of the communicator, the model and the
/// checkpointer.
TrainingOutcome train(const RunConfig& config, const Corpus& corpus, comm::Communicator& group,
                      const TrainingHooks& hooks);
/// train() without checkpoints; `on_line` is its only hook.
TrainingOutcome train(const RunConfig& config, const Corpus& corpus, comm::Communicator& group,
                      const std::function<void(const MetricsLine&)>& on_line);

}  // namespace droptest::experiments
