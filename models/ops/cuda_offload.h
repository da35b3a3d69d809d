// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory that tensors of a device lie in between two uses, copied while the device computes.
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

/// Values by key. Copies go through buffers on the device, on a stream of their own. Owner: one rank. Blocking: never,
/// but where it allocates.
class CudaOffload final : public KeyedStorage {
 public:
  /// Buffers each way.
  static constexpr std::size_t kPassages = kMostBuffers / 2;

  /// `compute` is borrowed: the stream of the tensors.
  explicit CudaOffload(comm::Stream& compute) : compute_(compute), copies_(compute.device()) {}

  void put(std::uint64_t key, comm::ConstTensor values) override;
  void expect(std::uint64_t key) override;
  /// Work behind it on the stream sees the values.
  void take(std::uint64_t key, comm::Tensor values) override;

  /// On the device.
  std::uint64_t buffer_bytes() const override;

 private:
  /// A buffer on the device that values pass through.
  struct Passage {
    comm::DeviceMemory memory;
    comm::Event filled, emptied;
    bool is_used = false;
    std::optional<std::uint64_t> key;  ///< of the values that were brought here
  };
  struct Record {
    comm::PinnedMemory memory;
    std::size_t bytes = 0;
    std::size_t room = 0;
  };
  /// One that `first` of its two users may write now.
  Passage& next(std::array<Passage, kPassages>& passages, std::size_t& turn, std::size_t bytes, comm::Stream& first);
  Passage& bring(std::uint64_t key);

  comm::Stream& compute_;
  std::map<std::uint64_t, Record> records_;
  std::array<Passage, kPassages> out_, in_;
  std::size_t out_turn_ = 0;
  std::size_t in_turn_ = 0;
  comm::Stream copies_;  // the last member: its work uses the others
};

}  // namespace droptest::models
