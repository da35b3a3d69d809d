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

void LayerBoundary::begin_sum(const comm::Tensor& own, StageBuffers& b, const comm::Message& about) const {
  if (b.extents.cuts_tokens()) {
    ops_.begin_scattered_sum(b.partial_sums, b.message, b.extents.cut().elems(b.extents.width), own, about);
  } else {
    ops_.begin_sum(own, b.message, about);
  }
}

}  // namespace droptest::models
