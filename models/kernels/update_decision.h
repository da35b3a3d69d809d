// SPDX-License-Identifier: Apache-2.0
// Whether a step updates the parameters, and by how much its gradients are clipped.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"

namespace droptest::models {

/// The bounds of an update, and the layout of the ranks that decide about it.
struct UpdateRule {
  double max_gradient_norm = 0;  ///< gradients with a larger norm are clipped; 0: no clipping
  /// Divides a rank's sum of losses. The mean of the quotients over ranks is the loss of the step.
  double loss_divisor = 1;
  int data_ranks = 1;      ///< number of replicas of the model; each has all gradients of the model
  int data_stride = 1;     ///< distance between the ranks of successive replicas with the same part
  int sequence_ranks = 1;  ///< number of ranks that share the tokens of a sequence; each counts as a replica as well
  int sequence_stride = 1;
  int pipeline_ranks = 1;  ///< ranks in the pipeline of a replica; one of them has the head, and so the losses
  int pipeline_stride = 1;
  int head_rank = 0;      ///< the pipeline rank with the head
  double loss_scale = 1;  ///< the gradients contain this factor; UpdateDecision::factor divides by it
  /// A rank tells the others by a flag that its gradients are not finite. kReliable: flags always arrive. kHeard,
  /// kMissed: this rank received, or lost, the flags of this step. With kMissed the gradients of others count as
  /// finite, so this rank may update although others skip.
  enum class Flags : std::uint8_t { kReliable, kHeard, kMissed } flags = Flags::kReliable;
  /// The gradient norm for clipping. kAgreed: the mean over the replicas. kOwn: that of the replica itself, so that
  /// replicas that lost different packets clip differently.
  enum class Norm : std::uint8_t { kAgreed, kOwn } norm = Norm::kAgreed;

  /// The number of ranks with the same part of the model.
  int replicas() const { return data_ranks * sequence_ranks; }
  std::int64_t replica_of(std::int64_t rank) const {
    return rank / data_stride % data_ranks * sequence_ranks + rank / sequence_stride % sequence_ranks;
  }
};

/// The numbers of one rank: the sum of its losses, and the sum of the squares of the gradients that it counts.
using RankNumbers = std::array<double, 2>;

struct UpdateDecision {
  double loss = 0;           ///< the mean over the ranks that have losses
  double gradient_norm = 0;  ///< norm of the whole model's gradients for clipping, without the loss scale
  double factor = 1;         ///< factor of the gradients, which still contain the loss scale; NaN: the step is skipped

  bool skips() const { return std::isnan(factor); }
};

/// The factor that makes the norm of the gradients at most max_norm: max_norm / (norm + 1e-6), at most 1.
double clip_scale(double norm, double max_norm);

/// The mean, computed from the differences to the first value. If all values are equal, the differences are zero and
/// the mean is exact; a plain mean of three equal values would be rounded.
double mean_of_ranks(std::span<const double> values);

/// The decision of rank `rank`. It is equal on all ranks that have Norm::kAgreed and not Flags::kMissed. A step is
/// skipped if its loss or the gradient norm of a replica is not finite. Shapes: `ranks` has the numbers of all ranks.
UpdateDecision decide_update(std::span<const RankNumbers> ranks, int rank, const UpdateRule& rule);

/// The decision on a device. Shapes: numbers [ranks, 2], decision [3] in the order of UpdateDecision. Throws:
/// CheckError if a shape is wrong.
void decide_update(comm::DeviceSpan<const double> numbers, int rank, const UpdateRule& rule,
                   comm::DeviceSpan<double> decision, comm::Stream& stream);

}  // namespace droptest::models
