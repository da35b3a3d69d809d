// SPDX-License-Identifier: Apache-2.0
// Device memory for the attention algorithms that are templates over host and device memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/device_tensor.h"
#include "comm/device/tensor_operations.h"
#include "models/attention/absence.h"
#include "models/attention/device_heads.h"
#include "models/attention/device_token_attention.h"
#include "models/attention/lost_elements.h"
#include "models/attention/ring_hop.h"
#include "sim/error.h"

namespace droptest::models {

/// Tensors with elements E in device memory, and the stream that computes on them. The members are those of HostHeads.
/// Each attend() rounds the running output to E, and each attend_backward() the gradients.
template <class E>
struct DeviceHeads {
  using Element = E;
  using Statistic = float;
  using Processor = comm::Stream;
  using Mask = DeviceAttentionMask;
  template <class U>
  using Buffer = comm::DeviceBuffer<U>;
  template <class U>
  using Span = comm::DeviceSpan<U>;
  template <class U>
  using View = DeviceHeadView<U>;
  using Pattern = DeviceAttentionPattern;
  using Inputs = DeviceAttentionInputs<E>;
  using Results = DeviceAttentionResults<E>;
  using Gradients = DeviceAttentionGradients<E>;
  struct Filled {
    LostElements lost;
    comm::DeviceBuffer<E> values;
  };

  template <class... Buffers>
  static std::uint64_t bytes_of(const Buffers&... buffers) {
    return (std::uint64_t{0} + ... + buffers.bytes());
  }

  struct Scratch {
    comm::DeviceBuffer<float> delta;
    comm::DeviceBuffer<std::uint8_t> absent;
    comm::DeviceBuffer<std::uint64_t> sent_flags, received_flags;

    std::uint64_t bytes() const { return bytes_of(delta, absent, sent_flags, received_flags); }
  };

  template <class U>
  static comm::DeviceSpan<U> room(comm::DeviceBuffer<U>& buffer, std::uint64_t count, const char* what,
                                  Processor& stream) {
    return room_in(buffer, count, what, stream);
  }
  template <class U>
  static comm::DeviceSpan<U> elems(comm::DeviceBuffer<U>& buffer) {
    return buffer.elems();
  }
  template <class U>
  static comm::DeviceSpan<const U> elems(const comm::DeviceBuffer<U>& buffer) {
    return buffer.elems();
  }
  static comm::ConstTensor tensor(comm::DeviceSpan<const E> elems, Processor& stream) {
    return comm::device_tensor(elems, stream);
  }
  static comm::Tensor tensor(comm::DeviceSpan<E> elems, Processor& stream) {
    return comm::device_tensor(elems, stream);
  }
  template <class U>
  static DeviceHeadView<U> sequence_first(comm::DeviceSpan<U> elems, const HeadShape& shape) {
    return models::sequence_first(elems, shape);
  }

  static Causality causality(const Mask& mask) { return mask.causality; }
  static void check_mask(const Mask& mask, std::int64_t batch, std::int64_t length) {
    if (mask.documents.empty() && mask.added.empty()) return;
    const auto covered = static_cast<std::size_t>(batch * length);
    if (mask.positions == length && (mask.documents.empty() || mask.documents.size() == covered)) return;
    throw ConfigError("attention mask: got one of " + std::to_string(mask.positions) + " positions and " +
                      std::to_string(mask.documents.size()) + " numbers of documents, want " + std::to_string(batch) +
                      " sequences of " + std::to_string(length) + " tokens");
  }
  static Pattern made_ready(const AttentionPattern& pattern, std::int64_t heads, std::int64_t width,
                            Processor& stream) {
    return {pattern, heads, width, stream};
  }
  static void wait(Processor& stream) { stream.synchronize(); }

  static void zero(comm::DeviceSpan<E> elems, Processor& stream) { comm::zero_on_device(elems, stream); }
  static void zero_lost(const LostElements& lost, comm::DeviceSpan<E> elems, Processor& stream) {
    comm::zero_ranges_on_device(comm::device_tensor(elems, stream), lost);
  }
  static void copy(comm::DeviceSpan<const E> from, comm::DeviceSpan<E> to, Processor& stream) {
    comm::copy_on_device(from, to, stream);
  }
  static void copy(const DeviceHeadView<const E>& from, const DeviceHeadView<E>& to, Processor& stream) {
    copy_heads<E>(from, to, stream);
  }
  static void add(const DeviceHeadView<const E>& from, const DeviceHeadView<E>& to, Processor& stream) {
    add_heads<E>(from, to, stream);
  }
  static void save(comm::DeviceSpan<const E> elems, Filled& filled, Processor& stream) {
    std::size_t count = 0;
    for (const sim::ElementRange& range : filled.lost) count += range.size();
    const comm::DeviceSpan<E> to = room(filled.values, count, "values of a fill", stream);
    std::size_t at = 0;
    for (const sim::ElementRange& range : filled.lost) {
      comm::copy_on_device(elems.subspan(range.begin, range.size()), to.subspan(at, range.size()), stream);
      at += range.size();
    }
  }
  static void restore(const Filled& filled, comm::DeviceSpan<E> elems, Processor& stream) {
    const comm::DeviceSpan<const E> from = filled.values.elems();
    std::size_t at = 0;
    for (const sim::ElementRange& range : filled.lost) {
      comm::copy_on_device(from.subspan(at, range.size()), elems.subspan(range.begin, range.size()), stream);
      at += range.size();
    }
  }

  static void begin(const DeviceHeadView<E>& output, comm::DeviceSpan<float> log_sum_exp, Processor& stream) {
    begin_attention(output, log_sum_exp, stream);
  }
  static void attend(Inputs inputs, const Absences& absent, const Pattern& pattern, const DeviceHeadView<E>& output,
                     comm::DeviceSpan<float> log_sum_exp, Scratch& scratch, Processor& stream) {
    take_absent(absent, inputs, scratch, stream);
    models::attend(inputs, pattern, output, log_sum_exp, stream);
  }
  static void attend_backward(Inputs inputs, const Absences& absent, const Pattern& pattern, const Results& results,
                              const Gradients& gradients, Scratch& scratch, Processor& stream) {
    take_absent(absent, inputs, scratch, stream);
    models::attend_backward(inputs, pattern, results, gradients,
                            room(scratch.delta, results.log_sum_exp.size(), kScratch, stream), stream);
  }

  using Rows = comm::DeviceBuffer<TokenHead>;
  static Rows rows(const std::vector<TokenHead>& rows, Processor& stream) {
    Rows result(rows.size(), "tokens that travel");
    comm::copy_to_device(std::span<const TokenHead>(rows), result.elems(), stream);
    return result;
  }
  static void pack(const DeviceHeadView<const E>& from, const Rows& rows, comm::DeviceSpan<E> packed,
                   Processor& stream) {
    pack_rows(from, rows.elems(), packed, stream);
  }
  static void unpack(comm::DeviceSpan<const E> packed, const Rows& rows, const DeviceHeadView<E>& to,
                     Processor& stream) {
    unpack_rows<E>(packed, rows.elems(), to, stream);
  }
  static void add_rows(comm::DeviceSpan<const E> packed, comm::DeviceSpan<const TokenHead> rows,
                       const DeviceHeadView<E>& to, Processor& stream) {
    models::add_rows<E>(packed, rows, to, stream);
  }
  static void weigh_branch(const DeviceHeadView<const E>& from, comm::DeviceSpan<const float> log_sum_exp,
                           comm::DeviceSpan<const float> of_all, const DeviceHeadView<E>& to, Processor& stream) {
    models::weigh_branch<E>(from, log_sum_exp, of_all, to, stream);
  }

  static void add_flags(RingHop& hop, std::string_view name, const FlagWords& sent, FlagWords& received,
                        Scratch& scratch, Processor& stream) {
    const comm::DeviceSpan<std::uint64_t> leaving = room(scratch.sent_flags, sent.size(), kScratch, stream);
    const comm::DeviceSpan<std::uint64_t> arriving = room(scratch.received_flags, received.size(), kScratch, stream);
    comm::copy_to_device(std::span<const std::uint64_t>(sent), leaving, stream);
    hop.add(name, reliable_flags(), comm::device_tensor(leaving, stream), comm::device_tensor(arriving, stream));
  }
  static void take_flags(FlagWords& received, Scratch& scratch, Processor& stream) {
    const comm::DeviceSpan<const std::uint64_t> arrived = scratch.received_flags.elems();
    comm::copy_to_host(reinterpret_cast<const std::byte*>(arrived.data()), std::as_writable_bytes(std::span(received)),
                       stream);
    stream.synchronize();
  }

 private:
  static constexpr const char* kScratch = "scratch of attention";

  static void take_absent(const Absences& absent, Inputs& inputs, Scratch& scratch, Processor& stream) {
    if (absent.empty()) return;
    const comm::DeviceSpan<std::uint8_t> flags = room(scratch.absent, absent.size(), kScratch, stream);
    comm::copy_to_device(std::span<const std::uint8_t>(absent), flags, stream);
    inputs.absent = flags;
  }
};

}  // namespace droptest::models
