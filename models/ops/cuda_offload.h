// SPDX-License-Identifier: Apache-2.0
// Offloading of a device's tensors to page-locked host memory. Copies overlap with computation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"
#include "comm/tensor.h"
#include "models/ops/keyed_storage.h"

namespace droptest::models {

/// Values by key. Copies go through buffers on the device, on a separate stream. expect() does nothing if the next
/// buffer still has values that wait for their take(). Owner: one rank. Blocking: only when it allocates.
class CudaOffload final : public KeyedStorage {
 public:
  /// The number of buffers in each direction.
  static constexpr std::size_t kPassages = kMostBuffers / 2;

  /// `compute` is the stream of the tensors, and borrowed.
  explicit CudaOffload(comm::Stream& compute) : compute_(compute), copies_(compute.device()) {}

  void put(std::uint64_t key, comm::ConstTensor values) override;
  void expect(std::uint64_t key) override;
  /// Later work on the stream sees the values.
  void take(std::uint64_t key, comm::Tensor values) override;

  /// The bytes of the buffers on the device.
  std::uint64_t buffer_bytes() const override;

 private:
  /// A buffer on the device for values on their way.
  struct Passage {
    comm::DeviceMemory memory;
    comm::Event filled, emptied;
    bool is_used = false;              ///< whether it was used before, so that `emptied` must be waited for
    std::optional<std::uint64_t> key;  ///< key of the values that were read into the buffer
  };
  struct Record {
    comm::PinnedMemory memory;
    std::size_t bytes = 0;
    std::size_t room = 0;
  };
  /// The next buffer in turn, with room for `bytes` bytes. Later work on the stream `first` may write to it.
  Passage& next(std::array<Passage, kPassages>& passages, std::size_t& turn, std::size_t bytes, comm::Stream& first);
  /// Begins to copy the values of the key into the next buffer.
  Passage& bring(std::uint64_t key);

  comm::Stream& compute_;
  std::map<std::uint64_t, Record> records_;
  std::array<Passage, kPassages> out_, in_;
  std::size_t out_turn_ = 0;
  std::size_t in_turn_ = 0;
  comm::Stream copies_;  // the last member: its work uses the others
};

}  // namespace droptest::models
