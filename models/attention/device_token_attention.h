// SPDX-License-Identifier: Apache-2.0
// The functions of token_attention.h on a device: attention between any tokens of a sequence, one tile of keys at a
// time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "comm/device/device_buffer.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"
#include "models/attention/token_attention.h"

namespace droptest::models {

/// A HeadView in device memory; `elems` begins at batch 0, token 0, head 0. Borrowed.
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
  /// The conversion to a view of constants: C is const E. It is a template because nvcc warns about a plain conversion
  /// operator in views of constants.
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

/// A view of the first elements of `elems` as a tensor [tokens, batch, heads, width] without gaps.
template <class E>
DeviceHeadView<E> sequence_first(comm::DeviceSpan<E> elems, const HeadShape& s) {
  const std::int64_t row = s.heads * s.width;
  return {elems.first(s.elems()), s, row, s.batch * row, s.width};
}

/// The first `count` elements of a buffer. If it is smaller, it gets new memory of unspecified content, once earlier
/// work on the stream has ended. `what` names the memory in the error of a full device.
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

/// An AttentionMask in device memory. Borrowed.
struct DeviceAttentionMask {
  Causality causality = Causality::kCausal;
  std::int64_t positions = 0;  ///< the length of the whole sequence, which the arrays cover
  /// The document of each token, [batch, positions], as in AttentionMask; empty: one document.
  comm::DeviceSpan<const std::int32_t> documents{};
  /// All other masks as one array [batch, queries, keys] of the whole sequence, added to scaled scores
  /// (combined_mask()). Empty: none.
  comm::DeviceSpan<const float> added{};
};

/// AttentionInputs in device memory. Borrowed.
template <class E>
struct DeviceAttentionInputs {
  DeviceHeadView<const E> queries;
  DeviceHeadView<const E> keys;
  DeviceHeadView<const E> values;
  DeviceAttentionMask mask;
  comm::DeviceSpan<const std::uint8_t> absent{};  ///< flags of absent keys, see AttentionInputs::absent
  DropoutMask dropout{};                          ///< dropout of the probabilities, see AttentionInputs::dropout
  /// Offsets that are added to the positions of a pattern's queries and keys, so that chunks of equal lengths share one
  /// pattern.
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
};

/// An AttentionPattern in device memory, cut into tiles for one head width. It is made once for all calls with the same
/// lengths.
class DeviceAttentionPattern {
 public:
  /// Waits for the stream. Throws: CheckError if a key is in two blocks of a head, or for a width outside of 1 to 256;
  /// the kernels support neither.
  DeviceAttentionPattern(const AttentionPattern& pattern, std::int64_t heads, std::int64_t width, comm::Stream& stream);

  /// A tile of queries (or keys), and the range of Side::met with the runs of keys (or queries) that it attends to.
  struct Strip {
    TokenRun run;
    std::int64_t first = 0;  ///< the tile's first token in the run
    std::int64_t head = 0;
    std::int64_t first_met = 0;
    std::int64_t end_met = 0;
  };
  /// The strips of the queries (or keys), and the runs of the other kind.
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

// E is float, Bf16 or Fp16.

// Log-sum-exps and all sums are float. The order of sums depends only on shapes.

/// The host's begin_attention() on a device.
template <class E>
void begin_attention(const DeviceHeadView<E>& output, comm::DeviceSpan<float> log_sum_exp, comm::Stream& stream);

/// The host's attend() on a device; the running output is rounded to E.
template <class E>
void attend(const DeviceAttentionInputs<E>& inputs, const DeviceAttentionPattern& pattern,
            const DeviceHeadView<E>& output, comm::DeviceSpan<float> log_sum_exp, comm::Stream& stream);

/// AttentionResults in device memory. Borrowed.
template <class E>
struct DeviceAttentionResults {
  DeviceHeadView<const E> output;
  comm::DeviceSpan<const float> log_sum_exp;
  DeviceHeadView<const E> grad_output;
  comm::DeviceSpan<const float> grad_log_sum_exp{};  ///< empty means zeros
};
/// AttentionGradients in device memory. Borrowed.
template <class E>
struct DeviceAttentionGradients {
  DeviceHeadView<E> queries;
  DeviceHeadView<E> keys;
  DeviceHeadView<E> values;
};

/// The host's attend_backward() on a device: adds to the gradients. Overwrites the scratch. Shapes: the scratch has the
/// shape of log_sum_exp.
template <class E>
void attend_backward(const DeviceAttentionInputs<E>& inputs, const DeviceAttentionPattern& pattern,
                     const DeviceAttentionResults<E>& results, const DeviceAttentionGradients<E>& gradients,
                     comm::DeviceSpan<float> scratch, comm::Stream& stream);

}  // namespace droptest::models
