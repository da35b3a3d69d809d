// SPDX-License-Identifier: Apache-2.0
// A layout of buffers in one piece of memory. Buffers that are never in use at the same time may overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace droptest::models {

/// A buffer and its time of use, from first_time to last_time (inclusive), in any unit.
struct PlannedBuffer {
  std::string name;  ///< name in messages
  std::uint64_t bytes = 0;
  int first_time = 0;
  int last_time = 0;
  /// Earlier uses, [first, last]. The buffer has no data between two uses.
  std::vector<std::pair<int, int>> earlier{};
};
/// The offsets of buffers in one piece of memory. Determinism: a pure function of the buffers and their order.
class MemoryPlan {
 public:
  static constexpr std::uint64_t kAlignmentBytes = 256;

  /// Places the buffers, the largest first, each at the lowest address that no buffer in use at the same time has.
  explicit MemoryPlan(std::vector<PlannedBuffer> buffers);

  const std::vector<PlannedBuffer>& buffers() const { return buffers_; }
  /// The offset of buffer number i, a multiple of kAlignmentBytes.
  std::uint64_t offset(std::size_t i) const { return offsets_[i]; }
  /// The size of the whole memory.
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::vector<PlannedBuffer> buffers_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t bytes_ = 0;
};

/// A text with the `count` largest buffers, for an error about too little memory: "3.1 GiB queries, keys and values,
/// 1.0 GiB logits". Buffers with the same name are added up.
std::string largest_text(std::span<const PlannedBuffer> buffers, std::size_t count);

}  // namespace droptest::models
