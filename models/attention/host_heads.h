// SPDX-License-Identifier: Apache-2.0
// Host memory for the attention algorithms that are templates over host and device memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "models/attention/absence.h"
#include "models/attention/lost_elements.h"
#include "models/attention/ring_hop.h"
#include "models/attention/token_attention.h"

namespace droptest::models {

/// Tensors with elements T in host memory, and the team that computes on them. DeviceHeads has the same members for a
/// device, and PlannedHeads for dry runs: attention over ranks is a template over one of the three.
template <class T>
struct HostHeads {
  using Element = T;
  using Statistic = T;           ///< the type of log-sum-exps
  using Processor = const Team;  ///< the last argument of each call
  using Mask = const AttentionMask&;
  template <class U>
  using Buffer = std::vector<U>;
  template <class U>
  using Span = std::span<U>;
  template <class U>
  using View = HeadView<U>;
  using Pattern = AttentionPattern;
  using Inputs = AttentionInputs<T>;
  using Results = AttentionResults<T>;
  using Gradients = AttentionGradients<T>;
  using Filled = FilledElements<T>;

  template <class... Buffers>
  static std::uint64_t bytes_of(const Buffers&... buffers) {
    return (std::uint64_t{0} + ... + (buffers.size() * sizeof(typename Buffers::value_type)));
  }

  /// Working memory that successive calls share.
  struct Scratch {
    std::vector<T> strips;

    std::uint64_t bytes() const { return bytes_of(strips); }
  };

  /// The first `count` elements of a buffer. A smaller buffer gets new memory. `what` names the memory in a device's
  /// errors.
  template <class U>
  static std::span<U> room(std::vector<U>& buffer, std::uint64_t count, const char* /*what*/,
                           Processor& /*processor*/) {
    if (buffer.size() < count) buffer = std::vector<U>(count);
    return std::span(buffer).first(count);
  }
  template <class U>
  static std::span<U> elems(std::vector<U>& buffer) {
    return buffer;
  }
  template <class U>
  static std::span<const U> elems(const std::vector<U>& buffer) {
    return buffer;
  }
  /// The elements as a tensor for communicators.
  static comm::ConstTensor tensor(std::span<const T> elems, Processor& /*processor*/) { return elems; }
  static comm::Tensor tensor(std::span<T> elems, Processor& /*processor*/) { return elems; }
  /// A view of the first elements of `elems` as a tensor [tokens, batch, heads, width] without gaps.
  template <class U>
  static HeadView<U> sequence_first(std::span<U> elems, const HeadShape& shape) {
    return view_of("tokens", elems.first(shape.elems()), shape, TokenLayout::kSequenceFirst);
  }

  static Causality causality(Mask mask) { return mask.causality(); }
  static void check_mask(Mask mask, std::int64_t batch, std::int64_t length) { mask.check_covers(batch, length); }
  /// The form of a pattern that attend() takes, for heads of one width.
  static Pattern made_ready(AttentionPattern pattern, std::int64_t /*heads*/, std::int64_t /*width*/,
                            Processor& /*processor*/) {
    return pattern;
  }
  /// Returns when earlier work has ended.
  static void wait(Processor& /*processor*/) {}

  static void zero(std::span<T> elems, Processor& /*processor*/) { std::ranges::fill(elems, T(0)); }
  static void zero_lost(const LostElements& lost, std::span<T> elems, Processor& /*processor*/) {
    models::zero_lost(lost, elems);
  }
  static void copy(std::span<const T> from, std::span<T> to, Processor& /*processor*/) {
    std::ranges::copy(from, to.begin());
  }
  static void copy(const HeadView<const T>& from, const HeadView<T>& to, Processor& /*processor*/) {
    copy_heads(from, to);
  }
  static void add(const HeadView<const T>& from, const HeadView<T>& to, Processor& /*processor*/) {
    add_heads(from, to);
  }
  static void save(std::span<const T> elems, Filled& filled, Processor& /*processor*/) { save_values(elems, filled); }
  static void restore(const Filled& filled, std::span<T> elems, Processor& /*processor*/) {
    restore_values(filled, elems);
  }

  static void begin(const HeadView<T>& output, std::span<T> log_sum_exp, Processor& /*processor*/) {
    begin_attention(output, log_sum_exp);
  }
  /// `absent` has the flags of absent keys; empty: no key is absent.
  static void attend(Inputs inputs, const Absences& absent, const Pattern& pattern, const HeadView<T>& output,
                     std::span<T> log_sum_exp, Scratch& scratch, Processor& processor) {
    inputs.absent = absent;
    models::attend(inputs, pattern, output, log_sum_exp, strips(inputs, scratch, processor), processor);
  }
  static void attend_backward(Inputs inputs, const Absences& absent, const Pattern& pattern, const Results& results,
                              const Gradients& gradients, Scratch& scratch, Processor& processor) {
    inputs.absent = absent;
    models::attend_backward(inputs, pattern, results, gradients, strips(inputs, scratch, processor), processor);
  }

  /// The heads of tokens in a message, in its order.
  using Rows = std::span<const TokenHead>;
  static Rows rows(const std::vector<TokenHead>& rows, Processor& /*processor*/) { return rows; }
  static std::span<const TokenHead> elems(Rows rows) { return rows; }
  /// pack() gathers the heads of tokens in `rows` into packed [rows, batch, width]. unpack() is the inverse, and
  /// add_rows() adds instead of setting.
  static void pack(const HeadView<const T>& from, const Rows& rows, std::span<T> packed, Processor& /*processor*/) {
    for_each_row(rows, from, packed, [&](const T* head, T* row) { std::copy_n(head, from.shape.width, row); });
  }
  static void unpack(std::span<const T> packed, const Rows& rows, const HeadView<T>& to, Processor& /*processor*/) {
    for_each_row(rows, to, packed, [&](T* head, const T* row) { std::copy_n(row, to.shape.width, head); });
  }
  static void add_rows(std::span<const T> packed, std::span<const TokenHead> rows, const HeadView<T>& to,
                       Processor& /*processor*/) {
    for_each_row(rows, to, packed, [&](T* head, const T* row) {
      for (std::int64_t d = 0; d < to.shape.width; ++d) head[d] += row[d];
    });
  }
  /// to = from x exp(log_sum_exp - of_all) for each query. The factor is the weight of the branch in the softmax over
  /// the keys of all branches, 0 for a query that the branch does not have. Shapes: log_sum_exp and of_all [batch,
  /// heads, tokens].
  static void weigh_branch(const HeadView<const T>& from, std::span<const T> log_sum_exp, std::span<const T> of_all,
                           const HeadView<T>& to, Processor& /*processor*/) {
    for_each_head(from.shape, [&](std::int64_t b, std::int64_t token, std::int64_t head) {
      const auto query = static_cast<std::size_t>((b * from.shape.heads + head) * from.shape.tokens + token);
      const T weight = std::isinf(log_sum_exp[query]) ? T(0) : std::exp(log_sum_exp[query] - of_all[query]);
      const T* const elems = from.at(b, token, head);
      T* const weighted = to.at(b, token, head);
      for (std::int64_t d = 0; d < from.shape.width; ++d) weighted[d] = elems[d] * weight;
    });
  }

  /// Adds a message of flags to a hop, in the reliable class control. After the hop, take_flags() makes the received
  /// flags readable.
  static void add_flags(RingHop& hop, std::string_view name, const FlagWords& sent, FlagWords& received,
                        Scratch& /*scratch*/, Processor& /*processor*/) {
    hop.add(name, reliable_flags(), std::span<const std::uint64_t>(sent), std::span(received));
  }
  static void take_flags(FlagWords& /*received*/, Scratch& /*scratch*/, Processor& /*processor*/) {}

 private:
  template <class F>
  static void for_each_head(const HeadShape& shape, const F& f) {
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t token = 0; token < shape.tokens; ++token) {
        for (std::int64_t head = 0; head < shape.heads; ++head) f(b, token, head);
      }
    }
  }
  /// Calls f(head of a token, row of the message) for each row.
  template <class View, class Packed, class F>
  static void for_each_row(std::span<const TokenHead> rows, const View& view, Packed packed, const F& f) {
    auto* row = packed.data();
    for (const TokenHead& one : rows) {
      for (std::int64_t b = 0; b < view.shape.batch; ++b, row += view.shape.width)
        f(view.at(b, one.token, one.head), row);
    }
  }
  static std::span<T> strips(const Inputs& inputs, Scratch& scratch, Processor& processor) {
    scratch.strips.resize(token_attention_scratch_elems(inputs.queries.shape.width, processor.threads()));
    return scratch.strips;
  }
};

}  // namespace droptest::models
