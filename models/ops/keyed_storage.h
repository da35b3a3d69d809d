// SPDX-License-Identifier: Apache-2.0
// Values that are stored outside of the operations' memory between two uses, identified by a key.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/tensor.h"

namespace droptest::models {

/// The storage is a file on the host, and page-locked host memory on a device. Copies overlap with operations. Owner:
/// one rank, from one thread. Throws: ConfigError that names the file if the disk is full or the file was truncated,
/// from the call itself or a later one.
class KeyedStorage {
 public:
  virtual ~KeyedStorage() = default;
  /// The number of buffers for values on their way that memory plans count; half of them in each direction. A file has
  /// more if more values are expected at once.
  static constexpr std::size_t kMostBuffers = 4;
  /// Stores the values and replaces earlier ones of the key. The tensor may change when the call returns; on a device,
  /// by later work on the stream.
  virtual void put(std::uint64_t key, comm::ConstTensor values) = 0;
  /// Begins to read the values. A take() of this key must follow before the next put() of this key.
  virtual void expect(std::uint64_t key) = 0;
  /// Copies the values into the tensor. It may be called repeatedly, and without expect(). Shapes: as many bytes as
  /// were put. Throws: CheckError for a key without values.
  virtual void take(std::uint64_t key, comm::Tensor values) = 0;
  /// The present bytes of the buffers for values on their way.
  virtual std::uint64_t buffer_bytes() const = 0;
};

}  // namespace droptest::models
