// SPDX-License-Identifier: Apache-2.0
// Whether a step updates the parameters, and by how much its gradients are clipped.
#pragma once

#include <cmath>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"

namespace droptest::models {

/// The bounds of an update.
struct UpdateRule {
  double max_gradient_norm = 0;  ///< gradients beyond it are clipped; 0: none are
  int micro_batches = 1;         ///< of the step
};

struct UpdateDecision {
  double loss = 0;           ///< mean over micro-batches and ranks
  double gradient_norm = 0;  ///< of the whole model
  double factor = 1;         ///< of the gradients; NaN: the step is skipped

  bool skips() const { return std::isnan(factor); }
};

/// The factor that makes the norm of the gradients at most max_norm: max_norm / (norm + 1e-6), at most 1.
double clip_scale(double norm, double max_norm);

/// The mean, exactly the value where all are equal: differences to the first value then sum to zero, where a plain mean
/// of three would be rounded.
double mean_of_ranks(std::span<const double> values);

/// `losses`: each rank's sum of its micro-batches' mean losses. `squares`: the sum of the squares of all gradients. A
/// step is skipped where its loss or its gradient norm is not finite: its update could only spread that.
UpdateDecision decide_update(std::span<const double> losses, double squares, const UpdateRule& rule);

/// The same on a device. Shapes: squares [1], decision [3] in the order of UpdateDecision.
void decide_update(comm::DeviceSpan<const double> losses, comm::DeviceSpan<const double> squares,
                   const UpdateRule& rule, comm::DeviceSpan<double> decision, comm::Stream& stream);

}  // namespace droptest::models
