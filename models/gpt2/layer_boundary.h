// SPDX-License-Identifier: Apache-2.0
// The boundary between the residual stream and the layers that tensor-parallel ranks share: its collectives.
#pragma once

#include "models/attention/lost_elements.h"
#include "models/gpt2/stage_buffers.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// The shared layers read and write all tokens of a micro-batch. Without a cut of tokens, every rank has the whole
/// residual stream: the layers need no gather, and an all-reduce adds up their partial sums. With a cut
/// (StageExtents::cut()), each rank has only its own tokens: an all-gather before the layers brings the tokens of the
/// other ranks, and a reduce-scatter adds up the partial sums of each rank's tokens. Each of the two collectives is the
/// backward pass of the other. Ranks: all of the group make the same calls.
class LayerBoundary {
 public:
  explicit LayerBoundary(Ops& ops) : ops_(ops) {}

  /// Gathers `own` of all ranks into `room` and returns `room`; without a cut, returns `own`. The gather is complete
  /// when the call returns.
  comm::Tensor gather(const comm::Tensor& own, const comm::Tensor& room, StageBuffers& buffers,
                      const comm::Message& about) const;
  /// gather() of a forward pass. Under Communicator::stops_lost_gradients(), `lost` gets the elements that this rank
  /// lost; otherwise it becomes empty.
  comm::Tensor gather_input(const comm::Tensor& own, const comm::Tensor& room, StageBuffers& buffers,
                            const comm::Message& about, LostElements& lost) const;
  /// gather() of the same input in the backward pass. Under stops_lost_gradients() it has the losses of gather_input(),
  /// otherwise losses of its own.
  comm::Tensor gather_again(const comm::Tensor& own, const comm::Tensor& room, StageBuffers& buffers,
                            const comm::Message& about, const LostElements& lost) const;
  /// The tensor for this rank's partial sums of all tokens: whole_sum() in the activations' type, partial_sums() as the
  /// sum over ranks reads them (part_of()).
  static const comm::Tensor& whole_sum(const comm::Tensor& own, const StageBuffers& buffers) {
    return buffers.extents.cuts_tokens() ? buffers.partial_sums : own;
  }
  static comm::Tensor partial_sums(const comm::Tensor& own, const StageBuffers& buffers) {
    return part_of(whole_sum(own, buffers), buffers.message);
  }
  /// Begins own = the sum over ranks of partial_sums(own), for all tokens, or for this rank's tokens with a cut.
  /// Ops::join() ends it.
  void begin_sum(const comm::Tensor& own, StageBuffers& buffers, const comm::Message& about) const;
  /// begin_sum() of the gradients of the tensor that gather_input() returned. The elements `lost` get no gradient from
  /// this rank.
  void begin_gradient_sum(const comm::Tensor& own, StageBuffers& buffers, const comm::Message& about,
                          const LostElements& lost) const;

 private:
  bool stops_lost_gradients() const { return ops_.stops_lost_gradients(sim::TrafficClass::kTpForward); }

  Ops& ops_;
};

}  // namespace droptest::models
