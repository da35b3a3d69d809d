// SPDX-License-Identifier: Apache-2.0
#include "models/training_step.h"

namespace droptest::models {

StepResult TrainingStep::take(std::span<const MicroBatch> micro_batches, double learning_rate) {
  accumulate(micro_batches);
  const UpdateDecision decision =
      model_.update(learning_rate, {max_gradient_norm_, static_cast<int>(micro_batches.size())});
  return {decision.loss, decision.gradient_norm, !decision.skips()};
}

void TrainingStep::accumulate(std::span<const MicroBatch> micro_batches) {
  model_.zero_gradients();
  const double scale = 1.0 / static_cast<double>(micro_batches.size());
  for (const MicroBatch& batch : micro_batches) {
    model_.forward_backward(batch.tokens, batch.targets, batch.shape, scale);
  }
}

}  // namespace droptest::models
