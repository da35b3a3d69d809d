// SPDX-License-Identifier: Apache-2.0
// Buffers that are kept between calls, so that a step allocates nothing once each message has been seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace droptest::comm {

/// Named buffers that only grow. A slot's content lasts until the slot is taken again.
class Scratch {
 public:
  enum class Slot : std::uint8_t { kReceived, kPart, kMasked, kInputCopy, kTransformed, kCorrected, kSentinel };

  /// A tensor of count_elems elements, content unspecified.
  Tensor take(Slot slot, ElementType type, std::uint64_t count_elems) {
    std::vector<std::byte>& buffer = buffers_[static_cast<std::size_t>(slot)];
    const std::size_t bytes = count_elems * element_bytes(type);
    if (buffer.size() < bytes) buffer.resize(bytes);
    return {type, std::span(buffer).first(bytes)};
  }

 private:
  std::array<std::vector<std::byte>, static_cast<std::size_t>(Slot::kSentinel)> buffers_;
};

}  // namespace droptest::comm
