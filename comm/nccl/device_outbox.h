// SPDX-License-Identifier: Apache-2.0
// Messages in device memory that were sent but not handed over yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "comm/call.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"

namespace droptest::comm {

/// Copies of messages, in the order in which they were sent. The memory of those that were taken is used again for
/// later messages of the same stream, whose order makes that safe.
class DeviceOutbox {
 public:
  struct Letter {
    Call call;
    int destination = 0;
    Stream* stream = nullptr;  ///< whose order the copy is in
    DeviceMemory copy;
    std::size_t bytes = 0;  ///< of the message; the memory may be larger
  };

  /// Copies what the call sends, in the order of the stream.
  void put(const Call& call, int destination, const std::byte* data, std::size_t bytes, Stream& stream);
  bool empty() const { return letters_.empty(); }
  std::size_t bytes() const { return bytes_; }
  const std::deque<Letter>& letters() const { return letters_; }

  /// All have been handed over: what sends them is on their streams.
  void taken();

 private:
  DeviceMemory memory(std::size_t bytes, Stream& stream);

  std::deque<Letter> letters_;
  std::size_t bytes_ = 0;
  std::vector<Letter> spare_;  ///< of which only stream and copy are meant
};

}  // namespace droptest::comm
