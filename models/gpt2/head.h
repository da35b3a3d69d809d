// SPDX-License-Identifier: Apache-2.0
// The head of a model: it computes a loss from the normalised residual stream. Smallest implementation: linear_head.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "models/gpt2/stage_buffers.h"
#include "models/gradient_mode.h"

namespace droptest::models {

/// Gets the number of a row and the logits of this rank's outputs for it. The logits are valid during the call.
using LogitVisitor = std::function<void(std::int64_t row, std::span<const double> logits)>;

/// Reads targets and shared_input(final_norm), the normalised rows of all ranks. A row with the target kIgnoredTarget
/// has no loss and no gradient. Ranks: all make the same calls.
class Head {
 public:
  virtual ~Head() = default;

  /// Sets `losses` to each row's loss in nats, equal on every rank.
  virtual void forward(StageBuffers& buffers) const = 0;
  /// Sets `losses`, multiplied by the weights of their classes, and computes `factor` x the gradients of the sum of the
  /// losses. The gradients of the head's parameters are set or added to. The gradient of final_norm.normalized goes to
  /// grad_normalized; its sum over ranks begins here (LayerBoundary), and Ops::join() ends it.
  virtual void forward_backward(StageBuffers& buffers, double factor, GradientMode mode) const = 0;
  /// Calls visit(row, logits of this rank's outputs) for each row with a target that is not ignored, in order.
  /// `targets` are those of the buffers; a dry run passes none and visits nothing. Waits for the device. Shapes:
  /// targets [rows].
  virtual void for_target_logits(StageBuffers& buffers, std::span<const std::int32_t> targets,
                                 const LogitVisitor& visit) const = 0;
};

}  // namespace droptest::models
