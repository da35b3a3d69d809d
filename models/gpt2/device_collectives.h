// SPDX-License-Identifier: Apache-2.0
// The sums over ranks of a model on a device, beside which the device can compute.
#pragma once

#include <optional>
#include <type_traits>

#include "comm/communicator.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"

namespace droptest::models {

/// The element type of messages that is not the model's.
template <class E>
using MessageElement = std::conditional_t<std::is_same_v<E, float>, comm::Bf16, float>;

/// The messages of a model of E where they are of the other element type; empty where they are of E.
template <class E>
using MessageBuffer = comm::DeviceSpan<MessageElement<E>>;

/// Calls compute(output) with the output where a rank's part of a sum over ranks is to be: in the message where that is
/// float and E is not, so that the part is not rounded.
template <class E, class Compute>
void compute_part(comm::DeviceSpan<E> sum, const MessageBuffer<E>& message, const Compute& compute) {
  if constexpr (!std::is_same_v<E, float>) {
    if (!message.empty()) return compute(message);
  }
  compute(sum);
}

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
  /// sum = the ranks' sum of what compute_part() had computed, in messages of the buffer's type where it is not empty.
  /// Until join(), work on the compute stream must use neither. Shapes: equal. Ranks: all; one all_reduce.
  template <class E>
  void begin_sum(comm::DeviceSpan<E> sum, const MessageBuffer<E>& buffer, const comm::Message& message);
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
