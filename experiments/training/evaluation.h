// SPDX-License-Identifier: Apache-2.0
// The loss of a model on tokens that it is not trained on.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/parallel_layout.h"
#include "experiments/data/corpus.h"
#include "experiments/training/training_model.h"

namespace droptest::experiments {

/// The result of an evaluation.
struct Evaluated {
  double mean_loss = 0;        ///< cross-entropy in nats over the targets, each with equal weight
  std::vector<double> logits;  ///< kLogits: the logits of each target, [targets, outputs of the head]
  std::uint64_t hits = 0;      ///< kMargins: targets that have the largest logit
};

/// Evaluates the model. Replicas take batches in turn, so one of them predicts each target; if replicas are equal, the
/// result has the bits of one rank's. kLogits is for data with one target in each sequence. Calls `evaluated` after
/// each of the rank's batches. Ranks: all of `groups`; null: only this rank has the model.
Evaluated evaluate(
    TrainingModel& model, const EvaluationData& data, const comm::ParallelGroups* groups = nullptr,
    models::EvaluationDetail detail = models::EvaluationDetail::kLoss, const std::function<void()>& evaluated = [] {});

}  // namespace droptest::experiments
