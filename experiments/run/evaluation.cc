// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/evaluation.h"

namespace droptest::experiments {

double mean_loss(TrainingModel& model, const EvaluationBatches& batches) {
  double sum = 0;
  for (std::uint64_t i = 0; i < batches.batches(); ++i) {
    const Batch batch = batches.batch(i);
    sum += model.evaluate(batch) * static_cast<double>(batch.targets.size());
  }
  return sum / static_cast<double>(batches.count_targets());
}

}  // namespace droptest::experiments
