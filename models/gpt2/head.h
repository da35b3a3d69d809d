// SPDX-License-Identifier: Apache-2.0
// The end of a model: a loss of the normalised residual stream. Smallest implementation: lm_head.h.
#pragma once

#include "models/gpt2/stage_buffers.h"
#include "models/gradient_mode.h"

namespace droptest::models {

/// Reads targets and shared_input(final_norm), the normalised rows of all ranks. A row whose target is kIgnoredTarget
/// has no loss and no gradient. Ranks: all call the same.
class Head {
 public:
  virtual ~Head() = default;

  /// `losses` becomes each row's loss in nats, the same on every rank.
  virtual void forward(StageBuffers& buffers) const = 0;
  /// The same; also sets or adds `factor` x the gradient of the sum of the losses to the head's parameters, and begins
  /// to sum grad_normalized, the like of it by final_norm.normalized, over ranks (LayerBoundary): Ops::join() ends it.
  virtual void forward_backward(StageBuffers& buffers, double factor, GradientMode mode) const = 0;
};

}  // namespace droptest::models
