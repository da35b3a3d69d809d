// SPDX-License-Identifier: Apache-2.0
// Messages in device memory that were sent but not handed over yet.
#pragma once

#include <cstddef>
#include <cstdint>
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

  std::vector<Letter> take_all();
  /// The first one to each destination.
  std::vector<Letter> take_first_of_each();
  /// What was taken has been handed over: what sends it is on its streams.
  void give_back(std::vector<Letter> letters);

 private:
  DeviceMemory memory(std::size_t bytes, Stream& stream);

  std::vector<Letter> letters_;
  std::size_t bytes_ = 0;
  std::vector<Letter> spare_;  ///< of which only stream and copy are meant
};

}  // namespace droptest::comm
