// SPDX-License-Identifier: Apache-2.0
// Bytes outside of the memory of operations: a file on the host, page-locked host memory on a device.
#pragma once

#include <cstdint>

#include "comm/tensor.h"

namespace droptest::models {

/// A range of bytes that is zero at first. Copies are done in the order of the calls, while operations go on: a read
/// sees all writes before it. Owner: one rank, from one thread. Destructor: gives up the copies that wait; afterwards
/// no copy uses a tensor. Throws: ConfigError that names the file, the place and the bytes where the file is full or
/// was cut, from the call or from a later one.
class Storage {
 public:
  using Ticket = std::uint64_t;

  virtual ~Storage() = default;
  /// Begins to copy to `offset`, after all operations so far. Operations may read the tensor; before they change it,
  /// wait(), or let them use only what a later read() brings there.
  virtual Ticket write(std::uint64_t offset, comm::ConstTensor from) = 0;
  /// Begins to copy from `offset`, after all operations so far. Operations use the tensor after wait().
  virtual Ticket read(std::uint64_t offset, comm::Tensor to) = 0;
  /// Operations from now on follow that copy and all before it.
  virtual void wait(Ticket ticket) = 0;
};

}  // namespace droptest::models
