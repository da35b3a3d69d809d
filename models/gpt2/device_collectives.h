// SPDX-License-Identifier: Apache-2.0
// The sums over ranks of a model on a device, beside which the device can compute.
#pragma once

#include <optional>

#include "comm/communicator.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"

namespace droptest::models {

/// Puts all collectives of a rank on one stream of their own, in program order; of a lone rank on its compute stream.
/// Owner: one rank's model.
class DeviceCollectives {
 public:
  /// Both are borrowed. Throws: DeviceError.
  DeviceCollectives(comm::Communicator& group, comm::Stream& compute);

  int world_size() const { return group_.world_size(); }

  /// Reduces what the compute stream's work so far has left in `data`. Until join(), work on the compute stream must
  /// neither read it nor write it. Ranks: all.
  template <class T>
  void begin_all_reduce(comm::DeviceSpan<T> data, comm::ReduceOp op, const comm::Message& message);
  /// Work that is put on the compute stream from now on sees what was reduced.
  void join();
  /// Both at once.
  template <class T>
  void all_reduce(comm::DeviceSpan<T> data, comm::ReduceOp op, const comm::Message& message) {
    begin_all_reduce(data, op, message);
    join();
  }

 private:
  comm::Communicator& group_;
  comm::Stream& compute_;
  std::optional<comm::Stream> own_;  ///< absent: a lone rank has nothing to overlap
  comm::Event produced_;
  comm::Event reduced_;
};

}  // namespace droptest::models
