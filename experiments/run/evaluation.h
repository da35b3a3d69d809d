// SPDX-License-Identifier: Apache-2.0
// The loss of a model on tokens that it is not trained on.
#pragma once

#include <functional>

#include "comm/parallel_layout.h"
#include "experiments/data/corpus.h"
#include "experiments/run/training_model.h"

namespace droptest::experiments {

/// Mean cross-entropy in nats over the tokens that `batches` predict, each with equal weight. Replicas of the model,
/// where there are, take batches in turn, so each token is predicted by one of them; where they are equal, the result
/// has the bits of one rank's. Calls `evaluated` after each of the rank's batches.
/// Ranks: all of the groups; null: this rank alone has the model.
double mean_loss(
    TrainingModel& model, const EvaluationBatches& batches, const comm::ParallelGroups* groups = nullptr,
    const std::function<void()>& evaluated = [] {});

}  // namespace droptest::experiments
