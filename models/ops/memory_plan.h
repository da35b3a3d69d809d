// SPDX-License-Identifier: Apache-2.0
// Buffers in one piece of memory, where those that are never in use at once may lie on each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace droptest::models {

/// A buffer, and its times of use: from the first to the last, both included, in a unit of the plan's maker.
struct PlannedBuffer {
  std::string name;  ///< for people
  std::uint64_t bytes = 0;
  int first_time = 0;
  int last_time = 0;
  /// Uses before, between which the buffer holds nothing; each from its first time to its last.
  std::vector<std::pair<int, int>> earlier{};
};
/// Determinism: a pure function of the buffers and their order.
class MemoryPlan {
 public:
  static constexpr std::uint64_t kAlignmentBytes = 256;

  /// Places the buffers, the largest first, each at the lowest address where no buffer of its time is.
  explicit MemoryPlan(std::vector<PlannedBuffer> buffers);

  const std::vector<PlannedBuffer>& buffers() const { return buffers_; }
  /// Of buffer number i; a multiple of kAlignmentBytes.
  std::uint64_t offset(std::size_t i) const { return offsets_[i]; }
  /// Of all together.
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::vector<PlannedBuffer> buffers_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t bytes_ = 0;
};

/// The largest, for an error about too little memory: "3.1 GiB queries, keys and values, 1.0 GiB logits". Buffers of
/// one name are added up.
std::string largest_text(std::span<const PlannedBuffer> buffers, std::size_t count);

}  // namespace droptest::models
