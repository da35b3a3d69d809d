// SPDX-License-Identifier: Apache-2.0
// A table of the tensors in one array of a device, so that one launch processes all of them.
#pragma once

#include <cstdint>
#include <span>

#include "comm/device/device_buffer.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/parameter.h"

namespace droptest::models {

/// The tensors cut into chunks of at most kChunkElems elements, in order, in the memory of the stream's device.
class TensorSegments {
 public:
  static constexpr std::uint64_t kChunkElems = kNormChunkElems;
  struct Chunk {
    std::uint64_t offset = 0;        ///< index of the first element in the array
    std::uint32_t count = 0;         ///< number of elements
    std::uint32_t decays = 0;        ///< 1: weight decay applies to the tensor; 0: it does not
    float learning_rate_factor = 1;  ///< factor of the optimizer's learning rate for the tensor
  };

  /// Segments must not overlap; empty ones are allowed. Returns when the table is on the device.
  TensorSegments(std::span<const ParameterRange> segments, comm::Stream& stream);

  comm::DeviceSpan<const Chunk> chunks() const { return chunks_.elems(); }
  /// The end of the last segment, in elements.
  std::uint64_t extent() const { return extent_; }

 private:
  comm::DeviceBuffer<Chunk> chunks_;
  std::uint64_t extent_ = 0;
};

/// sums[c] = the sum of the squares of chunk c, in double. Shapes: values [at least segments.extent()], sums
/// [segments.chunks().size()]. Determinism: depends on the chunk's elements and on whether they begin at a multiple of
/// 16 bytes.
void squares_of_chunks(const TensorSegments& segments, comm::DeviceSpan<const float> values,
                       comm::DeviceSpan<double> sums, comm::Stream& stream);
/// sum[0] = the total of the sums, in an order that depends only on their number. Shapes: sum [1].
void add_in_order(comm::DeviceSpan<const double> sums, comm::DeviceSpan<double> sum, comm::Stream& stream);

}  // namespace droptest::models
