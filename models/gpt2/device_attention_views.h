// SPDX-License-Identifier: Apache-2.0
// Views of a block's tensors on a device, and the documents of its tokens, as attention with state takes them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/device/device_buffer.h"
#include "models/kernels/attention.h"
#include "models/ops/ops.h"
#include "models/sequence/device_attention.h"

namespace droptest::models {

/// Each row's queries (0), keys (1) or values (2), of [rows, 3, heads, head width].
template <class E>
DeviceHeadView<E> part_of_qkv(comm::DeviceSpan<E> elems, std::int64_t part, const AttentionShape& s) {
  const std::int64_t row = s.heads * s.head_width;
  const std::size_t skipped = std::min(elems.size(), static_cast<std::size_t>(part * row));
  return {elems.subspan(skipped, elems.size() - skipped),
          {s.batch, s.length, s.heads, s.head_width},
          s.length * 3 * row,
          3 * row,
          s.head_width};
}
/// Of [rows, heads, head width].
template <class E>
DeviceHeadView<E> tokens_of(comm::DeviceSpan<E> elems, const AttentionShape& s) {
  const std::int64_t row = s.heads * s.head_width;
  return {elems, {s.batch, s.length, s.heads, s.head_width}, s.length * row, row, s.head_width};
}

/// Whether attention of the two has the same patterns.
inline bool have_equal_patterns(const AttentionShape& a, const AttentionShape& b) {
  return a.batch == b.batch && a.length == b.length && a.heads == b.heads && a.head_width == b.head_width;
}

/// The numbers of documents of whole sequences, which every micro-batch in flight has.
class DeviceDocuments {
 public:
  void take(const std::vector<std::int32_t>& documents, Ops& ops) {
    count_ = documents.size();
    if (documents.empty()) return;
    room_in(buffer_, count_, "numbers of documents", *ops.stream());
    ops.take_tokens(documents, {buffer_.elems().data(), count_});
  }
  comm::DeviceSpan<const std::int32_t> elems() const { return buffer_.elems().first(count_); }
  std::uint64_t bytes() const { return buffer_.bytes(); }

 private:
  comm::DeviceBuffer<std::int32_t> buffer_;
  std::size_t count_ = 0;
};

}  // namespace droptest::models
