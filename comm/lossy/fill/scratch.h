// SPDX-License-Identifier: Apache-2.0
// Buffers that are kept between calls, so that a step allocates nothing after the first use of each message.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/buffer_use.h"
#include "comm/communicator.h"
#include "comm/device/device_buffer.h"

namespace droptest::comm {

/// Named buffers that only grow. A slot's content lasts until the slot is taken again.
class Scratch {
 public:
  enum class Slot : std::uint8_t {
    kReceived,
    kPart,
    kMasked,
    kInputCopy,
    kTransformed,
    kCorrected,
    kCoded,
    kExact,
    kUnused,
    kSentinel
  };

  /// A tensor of count_elems elements of the type and in the memory of `like`, content unspecified.
  Tensor take(Slot slot, ConstTensor like, std::uint64_t count_elems) {
    const auto index = static_cast<std::size_t>(slot);
    const std::size_t bytes = count_elems * element_bytes(like.type);
    ++use_.taken;
    std::size_t& had = like.stream != nullptr ? device_bytes_[index] : host_bytes_[index];
    if (had < bytes) {
      ++use_.allocated;
      use_.bytes += bytes - had;
      had = bytes;
    }
    if (like.stream != nullptr)
      return {like.type, {on_device_[index].at_least(bytes, *like.stream), bytes}, like.stream};
    std::vector<std::byte>& buffer = buffers_[index];
    if (buffer.size() < bytes) buffer.resize(bytes);
    return {like.type, std::span(buffer).first(bytes)};
  }
  const BufferUse& use() const { return use_; }

 private:
  static constexpr auto kSlots = static_cast<std::size_t>(Slot::kSentinel);
  std::array<std::vector<std::byte>, kSlots> buffers_;
  std::array<GrowingDeviceMemory, kSlots> on_device_;
  std::array<std::size_t, kSlots> host_bytes_{};
  std::array<std::size_t, kSlots> device_bytes_{};
  BufferUse use_;
};

}  // namespace droptest::comm
