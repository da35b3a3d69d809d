// SPDX-License-Identifier: Apache-2.0
#include "models/training_step.h"

#include "sim/error.h"

namespace droptest::models {

StepResult TrainingStep::take(std::span<const MicroBatch> micro_batches, double learning_rate) {
  DROPTEST_CHECK(!micro_batches.empty(), "a step without micro-batches");
  const auto count = static_cast<int>(micro_batches.size());
  const std::int64_t of_first = count_targets(micro_batches.front().targets);
  std::int64_t targets = 0;
  bool alike = true;
  for (const MicroBatch& batch : micro_batches) {
    const std::int64_t own = count_targets(batch.targets);
    targets += own;
    alike = alike && own == of_first;
  }
  model_.zero_gradients();
  for (const MicroBatch& batch : micro_batches) {
    if (alike) {  // the mean over all targets is the mean of the micro-batches' means
      model_.forward_backward(batch.tokens, batch.targets, batch.shape, 1.0 / count);
    } else {
      model_.forward_backward(batch.tokens, batch.targets, batch.shape, 1.0, targets);
    }
  }
  const UpdateDecision decision = model_.update(learning_rate, {max_gradient_norm_, alike ? count : 1});
  return {decision.loss, decision.gradient_norm, !decision.skips()};
}

}  // namespace droptest::models
