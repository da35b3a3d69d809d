// SPDX-License-Identifier: Apache-2.0
// The end of a model: a loss of the normalised residual stream. Smallest implementation: linear_head.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "models/gpt2/stage_buffers.h"
#include "models/gradient_mode.h"

namespace droptest::models {

using LogitVisitor = std::function<void(std::int64_t row, std::span<const double> logits)>;

/// Reads targets and shared_input(final_norm), the normalised rows of all ranks. A row whose target is kIgnoredTarget
/// has no loss and no gradient. Ranks: all call the same.
class Head {
 public:
  virtual ~Head() = default;

  /// `losses` becomes each row's loss in nats, the same on every rank.
  virtual void forward(StageBuffers& buffers) const = 0;
  /// The same, with losses that the weights of their classes multiply; also sets or adds `factor` x the gradient of the
  /// sum of the losses to the head's parameters, and begins to sum grad_normalized, the like of it by
  /// final_norm.normalized, over ranks (LayerBoundary): Ops::join() ends it.
  virtual void forward_backward(StageBuffers& buffers, double factor, GradientMode mode) const = 0;
  /// Calls visit(row, logits of this rank's outputs) for each row whose target is not ignored, in order. `targets` are
  /// those of the buffers; none in a dry run, which visits nothing. Waits for the device. Shapes: targets [rows].
  virtual void for_target_logits(StageBuffers& buffers, std::span<const std::int32_t> targets,
                                 const LogitVisitor& visit) const = 0;
};

}  // namespace droptest::models
