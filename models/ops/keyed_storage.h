// SPDX-License-Identifier: Apache-2.0
// Values that are outside of the memory of operations between two uses, found again by a key.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/tensor.h"

namespace droptest::models {

/// A file on the host, page-locked host memory on a device. Copies overlap with operations. Owner: one rank, from one
/// thread. Throws: ConfigError that names the file where it is full or was cut, from these calls or later ones.
class KeyedStorage {
 public:
  virtual ~KeyedStorage() = default;
  /// Buffers that values pass through at once, at most: half of them each way.
  static constexpr std::size_t kMostBuffers = 4;
  /// Stores the values in place of those of the key so far. They may change when it returns; on a device, by work
  /// behind it on the stream.
  virtual void put(std::uint64_t key, comm::ConstTensor values) = 0;
  /// Begins to read; take() of this key follows before it is put again.
  virtual void expect(std::uint64_t key) = 0;
  /// Gives the values back, as often as it is called. Shapes: as many bytes as were put.
  virtual void take(std::uint64_t key, comm::Tensor values) = 0;
  /// Of the buffers through which values pass, now.
  virtual std::uint64_t buffer_bytes() const = 0;
};

}  // namespace droptest::models
