// SPDX-License-Identifier: Apache-2.0
// The loss of a model on tokens that it is not trained on.
#pragma once

#include "experiments/data/corpus.h"
#include "experiments/run/training_model.h"

namespace droptest::experiments {

/// Mean cross-entropy in nats over the tokens that `batches` predict, each with equal weight.
/// Ranks: all of the model's group.
double mean_loss(TrainingModel& model, const EvaluationBatches& batches);

}  // namespace droptest::experiments
