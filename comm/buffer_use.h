// SPDX-License-Identifier: Apache-2.0
// Memory of buffers that are kept for later calls.
#pragma once

#include <cstdint>

namespace droptest::comm {

/// The memory of reusable buffers or objects, and the number of allocations that reuse saved.
struct BufferUse {
  std::uint64_t bytes = 0;
  std::uint64_t taken = 0;      ///< times that a call took a buffer or object
  std::uint64_t allocated = 0;  ///< times that a taken one was new or had to grow

  BufferUse& operator+=(const BufferUse& other) {
    bytes += other.bytes;
    taken += other.taken;
    allocated += other.allocated;
    return *this;
  }
};

/// Memory of the loss layer of a rank, in all its groups.
struct LossLayerBuffers {
  BufferUse messages;            ///< copies that calls of classes with a network work with
  BufferUse calls;               ///< plans of such calls; their bytes are not counted
  std::uint64_t remembered = 0;  ///< bytes of stale values and of residuals of error feedback
};

}  // namespace droptest::comm
