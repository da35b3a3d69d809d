// SPDX-License-Identifier: Apache-2.0
// Tensors without memory, for dry runs of the attention algorithms that are templates over host and device memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"
#include "models/attention/absence.h"
#include "models/attention/attention_chunks.h"
#include "models/attention/attention_views.h"
#include "models/attention/lost_elements.h"
#include "models/attention/ring_hop.h"
#include "models/attention/token_attention.h"
#include "models/ops/planner_ops.h"
#include "models/phase_times.h"

namespace droptest::models {

/// The members of HostHeads, which compute nothing here. A tensor has addresses of a dry run, but no memory: one
/// address for each element, whatever its type. Sizes in bytes are those of the element types of the dry run.
struct PlannedHeads {
  using Element = std::byte;
  enum class Statistic : std::uint8_t {};
  using Processor = PlannerOps;
  using Mask = const AttentionMask&;
  template <class U>
  struct Buffer {
    U* data = nullptr;
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };
  template <class U>
  using Span = std::span<U>;
  template <class U>
  using View = HeadView<U>;
  using Pattern = AttentionPattern;
  using Inputs = AttentionInputs<Element>;
  struct Results {
    View<const Element> output;
    Span<const Statistic> log_sum_exp;
    View<const Element> grad_output;
  };
  using Gradients = AttentionGradients<Element>;
  struct Filled {
    LostElements lost;
    Buffer<Element> values;
  };
  struct Scratch {
    Buffer<Element> strips;   ///< scratch of the host's kernels
    Buffer<Statistic> delta;  ///< scratch of a device's backward kernel

    std::uint64_t bytes() const { return bytes_of(strips, delta); }
  };

  template <class... Buffers>
  static std::uint64_t bytes_of(const Buffers&... buffers) {
    return (std::uint64_t{0} + ... + buffers.bytes);
  }
  template <class U>
  static Span<U> room(Buffer<U>& buffer, std::uint64_t count, const char* /*what*/, Processor& processor) {
    if (buffer.count < count) {
      // Log-sum-exps are float32 on devices, and have the element type on the host.
      const OpsTypes types = processor.form().types();
      const bool is_statistic = std::is_same_v<U, Statistic>;
      const std::uint64_t bytes = count * comm::element_bytes(is_statistic ? types.statistics : types.activations);
      buffer = {reinterpret_cast<U*>(processor.reserve(bytes)), count, bytes};
    }
    return Span<U>(buffer.data, count);
  }
  template <class U>
  static Span<U> elems(Buffer<U>& buffer) {
    return Span<U>(buffer.data, buffer.count);
  }
  template <class U>
  static Span<const U> elems(const Buffer<U>& buffer) {
    return Span<const U>(buffer.data, buffer.count);
  }
  static comm::ConstTensor tensor(Span<const Element> elems, Processor& processor) {
    return {type_in(processor), {elems.data(), elems.size() * comm::element_bytes(type_in(processor))}};
  }
  static comm::Tensor tensor(Span<Element> elems, Processor& processor) {
    return {type_in(processor), {elems.data(), elems.size() * comm::element_bytes(type_in(processor))}};
  }
  template <class U>
  static View<U> sequence_first(Span<U> elems, const HeadShape& shape) {
    return view_of("tokens", elems.first(shape.elems()), shape, TokenLayout::kSequenceFirst);
  }

  static Causality causality(Mask mask) { return mask.causality(); }
  static void check_mask(Mask mask, std::int64_t batch, std::int64_t length) { mask.check_covers(batch, length); }
  static Pattern made_ready(AttentionPattern pattern, std::int64_t /*heads*/, std::int64_t /*width*/,
                            Processor& /*processor*/) {
    return pattern;
  }
  static void wait(Processor& /*processor*/) {}

  static void zero(Span<Element> /*elems*/, Processor& /*processor*/) {}
  static void zero_lost(const LostElements& /*lost*/, Span<Element> /*elems*/, Processor& /*processor*/) {}
  static void copy(Span<const Element> /*from*/, Span<Element> /*to*/, Processor& /*processor*/) {}
  static void copy(const View<const Element>& /*from*/, const View<Element>& /*to*/, Processor& /*processor*/) {}
  static void add(const View<const Element>& /*from*/, const View<Element>& /*to*/, Processor& /*processor*/) {}
  static void save(Span<const Element> /*elems*/, Filled& /*filled*/, Processor& /*processor*/) {}
  static void restore(const Filled& /*filled*/, Span<Element> /*elems*/, Processor& /*processor*/) {}
  static void begin(const View<Element>& /*output*/, Span<Statistic> /*log_sum_exp*/, Processor& /*processor*/) {}
  static void attend(const Inputs& inputs, const Absences& /*absent*/, const Pattern& /*pattern*/,
                     const View<Element>& /*output*/, Span<Statistic> /*log_sum_exp*/, Scratch& scratch,
                     Processor& processor) {
    take_strips(inputs, scratch, processor);
  }
  static void attend_backward(const Inputs& inputs, const Absences& /*absent*/, const Pattern& /*pattern*/,
                              const Results& results, const Gradients& /*gradients*/, Scratch& scratch,
                              Processor& processor) {
    take_strips(inputs, scratch, processor);
    if (processor.form().device() == KernelDevice::kCuda) {
      room(scratch.delta, results.log_sum_exp.size(), "scratch of attention", processor);
    }
  }

  using Rows = std::span<const TokenHead>;
  static Rows rows(const std::vector<TokenHead>& rows, Processor& /*processor*/) { return rows; }
  static Span<const TokenHead> elems(Rows rows) { return rows; }
  static void pack(const View<const Element>& /*from*/, const Rows& /*rows*/, Span<Element> /*packed*/,
                   Processor& /*processor*/) {}
  static void unpack(Span<const Element> /*packed*/, const Rows& /*rows*/, const View<Element>& /*to*/,
                     Processor& /*processor*/) {}
  static void add_rows(Span<const Element> /*packed*/, Rows /*rows*/, const View<Element>& /*to*/,
                       Processor& /*processor*/) {}
  static void weigh_branch(const View<const Element>& /*from*/, Span<const Statistic> /*log_sum_exp*/,
                           Span<const Statistic> /*of_all*/, const View<Element>& /*to*/, Processor& /*processor*/) {}

  static void add_flags(RingHop& hop, std::string_view name, const FlagWords& sent, FlagWords& received,
                        Scratch& /*scratch*/, Processor& /*processor*/) {
    hop.add(name, reliable_flags(), std::span<const std::uint64_t>(sent), std::span(received));
  }
  static void take_flags(FlagWords& /*received*/, Scratch& /*scratch*/, Processor& /*processor*/) {}

 private:
  static void take_strips(const Inputs& inputs, Scratch& scratch, Processor& processor) {
    const OpsForm& form = processor.form();
    if (form.device() != KernelDevice::kHost) return;
    room(scratch.strips, token_attention_scratch_elems(inputs.queries.shape.width, form.threads()),
         "scratch of attention", processor);
  }
  static comm::ElementType type_in(Processor& processor) { return processor.form().types().activations; }
};

/// Access to a block's tensors in a dry run.
class PlannedBlocks {
 public:
  using Memory = PlannedHeads;
  /// `ops` is a PlannerOps, and borrowed.
  explicit PlannedBlocks(Ops& ops) : ops_(dynamic_cast<PlannerOps&>(ops)) {}

  PlannerOps& processor() const { return ops_; }
  static PhaseScope timed() { return {nullptr, Phase::kAttention}; }
  static std::span<const std::byte> elems(const comm::ConstTensor& tensor) {
    return {tensor.bytes.data(), tensor.count_elems()};
  }
  static std::span<std::byte> elems(const comm::Tensor& tensor) { return {tensor.bytes.data(), tensor.count_elems()}; }

  /// Counts the copy of the document numbers that a device has.
  class Documents {
   public:
    void take(const Sequences& sequences, const PlannedBlocks& blocks) {
      if (!blocks.is_on_device()) return;
      bytes_ = std::max<std::uint64_t>(bytes_, std::span(sequences.documents).size_bytes());
    }
    AttentionMask mask(const Sequences& sequences, std::int64_t batch) const { return mask_of(sequences, batch); }
    std::uint64_t bytes() const { return bytes_; }

   private:
    std::uint64_t bytes_ = 0;
  };
  struct ChunkPatterns {
    AttentionPattern of(const AttentionShape& /*shape*/, const AttentionChunk& /*queries*/,
                        const AttentionChunk& /*keys*/, Memory::Inputs& /*inputs*/,
                        const PlannedBlocks& /*blocks*/) const {
      return {};
    }
  };
  std::uint64_t storage_bytes(const KeyedStorage& storage, std::uint64_t most) const {
    return is_on_device() ? storage.buffer_bytes() : most;
  }

 private:
  bool is_on_device() const { return ops_.form().device() == KernelDevice::kCuda; }

  PlannerOps& ops_;
};

}  // namespace droptest::models
