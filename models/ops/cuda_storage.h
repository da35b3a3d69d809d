// SPDX-License-Identifier: Apache-2.0
// Storage in page-locked host memory. Copies overlap with computation.
#pragma once

#include <cstdint>
#include <map>

#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"
#include "models/ops/storage.h"

namespace droptest::models {

/// Copies are on a separate stream. Blocking: only when it allocates.
class CudaStorage final : public Storage {
 public:
  /// `compute` is the stream of the tensors, and borrowed.
  CudaStorage(comm::Stream& compute, std::uint64_t bytes);

  Ticket write(std::uint64_t offset, comm::ConstTensor from) override;
  Ticket read(std::uint64_t offset, comm::Tensor to) override;
  void wait(Ticket ticket) override;

 private:
  /// Makes the stream of copies wait for all operations so far.
  void follow_operations();
  Ticket add();

  comm::Stream& compute_;
  comm::PinnedMemory memory_;
  comm::Event operations_;
  std::map<Ticket, comm::Event> copied_;  ///< events of copies that nothing has waited for
  Ticket added_ = 0;
  comm::Stream copies_;  // the last member: its work uses the others
};

}  // namespace droptest::models
