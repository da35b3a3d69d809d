// SPDX-License-Identifier: Apache-2.0
// The positions at which each token of a batch occurs, so that a device sums the embedding's gradient in a fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/kernels/embedding.h"

namespace droptest::models {

/// The positions of a batch's tokens, grouped by token, for the tokens in a range. Owned by one rank.
class TokenGroups {
 public:
  TokenGroups(TokenRange range, std::size_t most_tokens);

  /// Groups new tokens, in the order of the stream's work. The span may change when the call returns. The host waits
  /// for the copy of the previous call. Throws: CheckError if there are more than `most_tokens` tokens.
  void group(std::span<const std::int32_t> tokens, comm::Stream& stream);

  TokenRange range() const { return range_; }
  /// The number of tokens of the last group(), in the range or not.
  std::size_t tokens() const { return tokens_; }
  /// Group i is the token with row rows()[i] of the table. Its positions are positions()[j] for j from starts()[i] to
  /// starts()[i + 1] - 1, in ascending order.
  comm::DeviceSpan<const std::int32_t> rows() const { return part(0, groups_); }
  comm::DeviceSpan<const std::int32_t> starts() const { return part(groups_, groups_ + 1); }
  comm::DeviceSpan<const std::int32_t> positions() const { return part(2 * groups_ + 1, grouped_); }

 private:
  comm::DeviceSpan<const std::int32_t> part(std::size_t first, std::size_t count) const {
    return comm::DeviceSpan<const std::int32_t>(table_.elems()).subspan(first, count);
  }

  TokenRange range_;
  std::size_t most_tokens_;
  std::size_t tokens_ = 0;
  std::size_t groups_ = 0;
  std::size_t grouped_ = 0;
  /// For each token of the range: its count, and later the place of its next position.
  std::vector<std::int32_t> places_;
  comm::PinnedBuffer<std::int32_t> staged_;
  comm::DeviceBuffer<std::int32_t> table_;
  comm::Event copied_;
};

/// grad_table[row] += the sum of grad_output over the row's group; other rows stay. E is float, Bf16 or Fp16.
/// Shapes: grad_output [groups.tokens(), width], grad_table [at least range.count, width].
/// Determinism: the order of each sum depends only on the tokens.
template <class E>
void embedding_backward(const TokenGroups& groups, comm::DeviceSpan<const E> grad_output, std::int64_t width,
                        comm::DeviceSpan<float> grad_table, comm::Stream& stream);

}  // namespace droptest::models
