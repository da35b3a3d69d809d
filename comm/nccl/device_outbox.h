// SPDX-License-Identifier: Apache-2.0
// Messages in device memory that were sent but not handed over to NCCL yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/call.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"

namespace droptest::comm {

/// Copies of messages, in the order of their sends. The memory of handed-over messages is reused for later messages of
/// the same stream; the order of the stream makes that safe.
class DeviceOutbox {
 public:
  struct Letter {
    Call call;
    int destination = 0;
    Stream* stream = nullptr;  ///< stream in which the copy is ordered
    DeviceMemory copy;
    std::size_t bytes = 0;  ///< bytes of the message; the memory may be larger
  };

  /// Copies the data of the call, in the order of the stream.
  void put(const Call& call, int destination, const std::byte* data, std::size_t bytes, Stream& stream);
  bool empty() const { return letters_.empty(); }
  std::size_t bytes() const { return bytes_; }

  std::vector<Letter> take_all();
  /// The first message to each destination.
  std::vector<Letter> take_first_of_each();
  /// Takes back the memory of letters that were handed over: their sends are queued on their streams.
  void give_back(std::vector<Letter> letters);

 private:
  DeviceMemory memory(std::size_t bytes, Stream& stream);

  std::vector<Letter> letters_;
  std::size_t bytes_ = 0;
  std::vector<Letter> spare_;  ///< letters without a message, for their stream and memory
};

}  // namespace droptest::comm
