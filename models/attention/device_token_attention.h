// SPDX-License-Identifier: Apache-2.0
// token_attention.h on a device: attention between any tokens of a sequence, a tile of keys at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "comm/device/device_buffer.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/attention/token_attention.h"

namespace droptest::models {

/// HeadView of a device's memory; `elems` begins at batch 0, token 0, head 0. Borrowed.
template <class E>
struct DeviceHeadView {
  comm::DeviceSpan<E> elems;
  HeadShape shape;
  std::int64_t batch_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  DeviceHeadView heads(std::int64_t first, std::int64_t count) const {
    return part(first * head_stride, {shape.batch, shape.tokens, count, shape.width});
  }
  DeviceHeadView tokens(std::int64_t first, std::int64_t count) const {
    return part(first * token_stride, {shape.batch, count, shape.heads, shape.width});
  }
  /// C is const E. A template, because nvcc warns of the plain conversion in views of constants.
  template <class C>
  requires(!std::is_const_v<E> && std::is_same_v<C, const E>) operator DeviceHeadView<C>()
      const {  // NOLINT(google-explicit-constructor)
    return {elems, shape, batch_stride, token_stride, head_stride};
  }

 private:
  DeviceHeadView part(std::int64_t offset, const HeadShape& of_part) const {
    const std::size_t skipped = std::min(elems.size(), static_cast<std::size_t>(std::max<std::int64_t>(0, offset)));
    return {elems.subspan(skipped, elems.size() - skipped), of_part, batch_stride, token_stride, head_stride};
  }
};

/// [tokens, batch, heads, width] without gaps, at the beginning of `elems`.
template <class E>
DeviceHeadView<E> sequence_first(comm::DeviceSpan<E> elems, const HeadShape& s) {
  const std::int64_t row = s.heads * s.width;
  return {elems.first(s.elems()), s, row, s.batch * row, s.width};
}

/// The first `count` elements of a buffer. Where it is smaller it gets other memory, of unspecified content, once
/// earlier work on the stream has ended. `what` is in the error of a full device.
template <class T>
comm::DeviceSpan<T> room_in(comm::DeviceBuffer<T>& buffer, std::uint64_t count, const char* what,
                            comm::Stream& stream) {
  if (buffer.elems().size() < count) {
    stream.synchronize();
    buffer = {};
    buffer = comm::DeviceBuffer<T>(count, what);
  }
  return buffer.elems().first(count);
}

/// AttentionMask of a device's memory. Borrowed.
struct DeviceAttentionMask {
  Causality causality = Causality::kCausal;
  std::int64_t positions = 0;  ///< of the whole sequence, which the arrays cover
  /// [batch, positions] as AttentionMask's; empty: one document.
  comm::DeviceSpan<const std::int32_t> documents{};
  /// [batch, queries, keys] of all positions, added to scaled scores: every other mask (combined_mask()). Empty: none.
  comm::DeviceSpan<const float> added{};
};

template <class E>
struct DeviceAttentionInputs {
  DeviceHeadView<const E> queries;
  DeviceHeadView<const E> keys;
  DeviceHeadView<const E> values;
  DeviceAttentionMask mask;
  comm::DeviceSpan<const std::uint8_t> absent{};  ///< keys that leave the softmax, as AttentionInputs::absent
  DropoutMask dropout{};                          ///< of the probabilities, as AttentionInputs::dropout
  /// Added to the positions of a pattern's queries and keys: chunks of equal lengths have one pattern.
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
};

/// An AttentionPattern in a device's memory, cut into the tiles of heads of a width. Made once for all calls with the
/// same lengths.
class DeviceAttentionPattern {
 public:
  /// Waits for the stream. Throws: CheckError where a key is in two blocks of a head, which the kernels do not take,
  /// and for a width that they do not take: 1 to 256.
  DeviceAttentionPattern(const AttentionPattern& pattern, std::int64_t heads, std::int64_t width, comm::Stream& stream);

  /// A tile of queries or of keys, and the runs that it meets.
  struct Strip {
    TokenRun run;
    std::int64_t first = 0;  ///< of the run's tokens
    std::int64_t head = 0;
    std::int64_t first_met = 0;
    std::int64_t end_met = 0;
  };
  /// Of a kind of tokens: their strips, and the runs of the other kind.
  struct Side {
    comm::DeviceBuffer<Strip> strips;
    comm::DeviceBuffer<TokenRun> met;
  };
  const Side& queries() const { return queries_; }
  const Side& keys() const { return keys_; }
  std::int64_t width() const { return width_; }

 private:
  std::int64_t width_;
  Side queries_;
  Side keys_;
};

// For E float, Bf16 or Fp16.

// Log-sum-exps are floats. All sums are float, in an order that depends on shapes alone.

/// Sets log_sum_exp and output as begin_attention() of the host does.
template <class E>
void begin_attention(const DeviceHeadView<E>& output, comm::DeviceSpan<float> log_sum_exp, comm::Stream& stream);

/// As attend() of the host; the running output is rounded to E.
template <class E>
void attend(const DeviceAttentionInputs<E>& inputs, const DeviceAttentionPattern& pattern,
            const DeviceHeadView<E>& output, comm::DeviceSpan<float> log_sum_exp, comm::Stream& stream);

template <class E>
struct DeviceAttentionResults {
  DeviceHeadView<const E> output;
  comm::DeviceSpan<const float> log_sum_exp;
  DeviceHeadView<const E> grad_output;
  comm::DeviceSpan<const float> grad_log_sum_exp{};  ///< empty: 0
};
template <class E>
struct DeviceAttentionGradients {
  DeviceHeadView<E> queries;
  DeviceHeadView<E> keys;
  DeviceHeadView<E> values;
};

/// As attend_backward() of the host: adds to the gradients. Shapes: scratch as log_sum_exp, overwritten.
template <class E>
void attend_backward(const DeviceAttentionInputs<E>& inputs, const DeviceAttentionPattern& pattern,
                     const DeviceAttentionResults<E>& results, const DeviceAttentionGradients<E>& gradients,
                     comm::DeviceSpan<float> scratch, comm::Stream& stream);

}  // namespace droptest::models
