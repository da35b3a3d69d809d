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

/// The bounds of an update, and who takes part.
struct UpdateRule {
  double max_gradient_norm = 0;  ///< gradients beyond it are clipped; 0: none are
  double loss_divisor = 1;       ///< of a rank's losses; their mean over ranks is the loss of the step
  int data_ranks = 1;            ///< replicas of the model: each has the gradients of all of it
  int data_stride = 1;           ///< from a rank to that of the next replica with the same part
  int sequence_ranks = 1;        ///< with other tokens of the same sequences; each is a replica as well
  int sequence_stride = 1;
  int pipeline_ranks = 1;  ///< of each replica; one of them has the head, and so the losses
  int pipeline_stride = 1;
  int head_rank = 0;      ///< among the pipeline's
  double loss_scale = 1;  ///< the gradients are multiplied by it, and the factor divides by it
  /// Whether this rank hears from the others that their gradients are not finite: always, or where that can be lost, in
  /// this step. Missed: such gradients count as none, so that this rank may update where others skip.
  enum class Flags : std::uint8_t { kReliable, kHeard, kMissed } flags = Flags::kReliable;
  /// Whose gradient norm counts: the mean over replicas, which is that of each where they are equal; or each replica's
  /// own, so that replicas which lost different packets are clipped differently.
  enum class Norm : std::uint8_t { kAgreed, kOwn } norm = Norm::kAgreed;

  /// Ranks that have the same part of the model.
  int replicas() const { return data_ranks * sequence_ranks; }
  std::int64_t replica_of(std::int64_t rank) const {
    return rank / data_stride % data_ranks * sequence_ranks + rank / sequence_stride % sequence_ranks;
  }
};

/// Of one rank: the sum of its losses, and the sum of the squares of the gradients that it counts.
using RankNumbers = std::array<double, 2>;

struct UpdateDecision {
  double loss = 0;           ///< mean over the ranks that have losses
  double gradient_norm = 0;  ///< of the whole model, the one that counts, without the loss scale
  double factor = 1;         ///< of the gradients as they are, with the loss scale; NaN: the step is skipped

  bool skips() const { return std::isnan(factor); }
};

/// The factor that makes the norm of the gradients at most max_norm: max_norm / (norm + 1e-6), at most 1.
double clip_scale(double norm, double max_norm);

/// The mean, exactly the value where all are equal: differences to the first value then sum to zero, where a plain mean
/// of three would be rounded.
double mean_of_ranks(std::span<const double> values);

/// Of rank `rank`; the same on all with Norm::kAgreed. A step is skipped where its loss or any gradient norm is not
/// finite: its update could only spread that. Shapes: the numbers of all ranks.
UpdateDecision decide_update(std::span<const RankNumbers> ranks, int rank, const UpdateRule& rule);

/// The same on a device. Shapes: numbers [ranks, 2], decision [3] in the order of UpdateDecision.
void decide_update(comm::DeviceSpan<const double> numbers, int rank, const UpdateRule& rule,
                   comm::DeviceSpan<double> decision, comm::Stream& stream);

}  // namespace droptest::models
