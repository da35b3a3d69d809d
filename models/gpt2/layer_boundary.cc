// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/layer_boundary.h"

namespace droptest::models {

comm::Tensor LayerBoundary::gather(const comm::Tensor& own, const comm::Tensor& room, StageBuffers& b,
                                   const comm::Message& about) const {
  if (!b.extents.cuts_tokens()) return own;
  ops_.begin_gather(own, b.message, b.extents.cut().elems(b.extents.width), room, about);
  ops_.join();
  return room;
}

comm::Tensor LayerBoundary::gather_input(const comm::Tensor& own, const comm::Tensor& room, StageBuffers& b,
                                         const comm::Message& about, LostElements& lost) const {
  comm::Message message = about;
  lost.clear();
  if (stops_lost_gradients()) message.lost = &lost;
  return gather(own, room, b, message);
}

comm::Tensor LayerBoundary::gather_again(const comm::Tensor& own, const comm::Tensor& room, StageBuffers& b,
                                         const comm::Message& about, const LostElements& lost) const {
  comm::Message message = about;
  if (stops_lost_gradients()) message.delivery = comm::Delivery::kCertain;
  const comm::Tensor gathered = gather(own, room, b, message);
  ops_.zero_ranges(gathered, lost);
  return gathered;
}

void LayerBoundary::begin_gradient_sum(const comm::Tensor& own, StageBuffers& b, const comm::Message& about,
                                       const LostElements& lost) const {
  ops_.zero_ranges(partial_sums(own, b), lost);
  begin_sum(own, b, about);
}

void LayerBoundary::begin_sum(const comm::Tensor& own, StageBuffers& b, const comm::Message& about) const {
  if (b.extents.cuts_tokens()) {
    ops_.begin_scattered_sum(b.partial_sums, b.message, b.extents.cut().elems(b.extents.width), own, about);
  } else {
    ops_.begin_sum(own, b.message, about);
  }
}

}  // namespace droptest::models
