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

struct Evaluated {
  double mean_loss = 0;        ///< cross-entropy in nats over the targets, each with equal weight
  std::vector<double> logits;  ///< kLogits: those of each target, [targets, outputs of the head]
  std::uint64_t hits = 0;      ///< kMargins: targets that have the largest logit
};

/// Replicas of the model, where there are, take batches in turn, so each target is predicted by one of them; where they
/// are equal, the result has the bits of one rank's. kLogits is for data with one target in each sequence. Calls
/// `evaluated` after each of the rank's batches. Ranks: all of the groups; null: this rank alone has the model.
Evaluated evaluate(
    TrainingModel& model, const EvaluationData& data, const comm::ParallelGroups* groups = nullptr,
    models::EvaluationDetail detail = models::EvaluationDetail::kLoss, const std::function<void()>& evaluated = [] {});

}  // namespace droptest::experiments
