// SPDX-License-Identifier: Apache-2.0
// The loop of a kernel over the elements of a table of tensors.
#pragma once

#include "models/kernels/element_pack.cuh"
#include "models/kernels/tensor_segments.h"

namespace droptest::models {

/// The number of consecutive elements in one call, as a type.
template <int V>
struct Width {
  static constexpr int value = V;
};

/// Calls body(Width<V>, chunk, first) for the elements first, ..., first + V - 1 of each chunk. If `aligned` is not 0
/// and the chunk's offset is a multiple of a pack, V is the length of a pack, except for the last elements, which do
/// not fill one; otherwise V is 1. The grid strides over chunks; the threads of a block share a chunk.
template <class Body>
__device__ void for_segment_elements(const TensorSegments::Chunk* chunks, std::int64_t count, int aligned,
                                     const Body& body) {
  constexpr int kVector = kPackElems<float>;
  for (std::int64_t c = blockIdx.x; c < count; c += gridDim.x) {
    const TensorSegments::Chunk chunk = chunks[c];
    const unsigned in_packs = aligned != 0 && chunk.offset % kVector == 0 ? chunk.count / kVector * kVector : 0;
    for (unsigned i = threadIdx.x * kVector; i < in_packs; i += blockDim.x * kVector) {
      body(Width<kVector>(), chunk, chunk.offset + i);
    }
    for (unsigned i = in_packs + threadIdx.x; i < chunk.count; i += blockDim.x) {
      body(Width<1>(), chunk, chunk.offset + i);
    }
  }
}

}  // namespace droptest::models
