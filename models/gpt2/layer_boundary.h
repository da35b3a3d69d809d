// SPDX-License-Identifier: Apache-2.0
// The boundary between the residual stream and the layers that tensor-parallel ranks share.
#pragma once

#include "models/attention/lost_elements.h"
#include "models/gpt2/stage_buffers.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// The layers that ranks share read and write all tokens of a micro-batch. Without a cut of tokens every rank has the
/// whole residual stream: reading it needs no collective, and partial sums are added up by an all-reduce. With a cut
/// (StageExtents::cut()) a rank has its own tokens: an all-gather in front of the layers brings those of the others,
/// and a reduce-scatter adds up partial sums, of which each rank gets its own tokens. The backward pass of the one is
/// the other. Ranks: all of the group make the same calls.
class LayerBoundary {
 public:
  explicit LayerBoundary(Ops& ops) : ops_(ops) {}

  /// All tokens of `own`, in `room`; without a cut `own` itself. Complete when it returns.
  comm::Tensor gather(const comm::Tensor& own, const comm::Tensor& room, StageBuffers& buffers,
                      const comm::Message& about) const;
  /// gather() of a forward pass. Under Communicator::stops_lost_gradients() what this rank lost goes to `lost`, which
  /// is empty otherwise.
  comm::Tensor gather_input(const comm::Tensor& own, const comm::Tensor& room, StageBuffers& buffers,
                            const comm::Message& about, LostElements& lost) const;
  /// gather() of the same input in the backward pass: with the losses of gather_input() under stops_lost_gradients(),
  /// and with losses of its own otherwise.
  comm::Tensor gather_again(const comm::Tensor& own, const comm::Tensor& room, StageBuffers& buffers,
                            const comm::Message& about, const LostElements& lost) const;
  /// Where this rank's partial sums of all tokens are to be: in activations' type, and as the sum takes them.
  static const comm::Tensor& whole_sum(const comm::Tensor& own, const StageBuffers& buffers) {
    return buffers.extents.cuts_tokens() ? buffers.partial_sums : own;
  }
  static comm::Tensor partial_sums(const comm::Tensor& own, const StageBuffers& buffers) {
    return part_of(whole_sum(own, buffers), buffers.message);
  }
  /// Begins own = the sum over ranks of partial_sums(own): of all tokens, or with a cut of this rank's. Ops::join()
  /// ends it.
  void begin_sum(const comm::Tensor& own, StageBuffers& buffers, const comm::Message& about) const;
  /// The same of the gradients with respect to what gather_input() brought, of which `lost` has none here.
  void begin_gradient_sum(const comm::Tensor& own, StageBuffers& buffers, const comm::Message& about,
                          const LostElements& lost) const;

 private:
  bool stops_lost_gradients() const { return ops_.stops_lost_gradients(sim::TrafficClass::kTpForward); }

  Ops& ops_;
};

}  // namespace droptest::models
