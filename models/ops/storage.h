// SPDX-License-Identifier: Apache-2.0
// Bytes outside of the memory of operations: a file on the host, page-locked host memory on a device.
#pragma once

#include <cstdint>

#include "comm/tensor.h"

namespace droptest::models {

/// A range of bytes that begins as zeros. Copies are made in the order of the calls and overlap with operations; a read
/// sees all earlier writes. The destructor may drop copies that have not begun; afterwards no copy uses a tensor.
/// Owner: one rank, from one thread. Throws: ConfigError that names the file, the offset and the bytes if the disk is
/// full or the file was truncated, from the call or from a later one.
class Storage {
 public:
  using Ticket = std::uint64_t;

  virtual ~Storage() = default;
  /// Begins to copy to `offset`, after all operations so far. Operations may read the tensor. They may change it only
  /// after wait(), or after a later read() into the same tensor.
  virtual Ticket write(std::uint64_t offset, comm::ConstTensor from) = 0;
  /// Begins to copy from `offset`, after all operations so far. Operations use the tensor after wait().
  virtual Ticket read(std::uint64_t offset, comm::Tensor to) = 0;
  /// Operations from now on run after that copy and all earlier ones.
  virtual void wait(Ticket ticket) = 0;
};

}  // namespace droptest::models
