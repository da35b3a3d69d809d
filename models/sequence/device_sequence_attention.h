// SPDX-License-Identifier: Apache-2.0
// SequenceAttention on devices: Ulysses, a ring, and every factorisation of the two.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/device_buffer.h"
#include "models/sequence/absence.h"
#include "models/sequence/device_attention.h"
#include "models/sequence/sequence_attention.h"

namespace droptest::models {

/// The inputs that all ranks of a call have in common. Causal. Borrowed; backward gets what forward got.
struct DeviceSequencePass {
  const SequenceParts& parts;
  comm::DeviceSpan<const std::int32_t> documents{};  ///< of the whole sequences, as DeviceAttentionMask's
  int layer = -1;
  DropoutMask dropout{};  ///< as SequencePass::dropout
};

/// The saved activations of a forward pass, as SavedAttention.
template <class E>
struct DeviceSavedAttention {
  comm::DeviceBuffer<E> queries;
  comm::DeviceBuffer<E> keys;
  comm::DeviceBuffer<E> values;
  comm::DeviceBuffer<E> output;
  comm::DeviceBuffer<float> log_sum_exp;
  Absences absent;  ///< of keys; empty: all are there
  AttentionLosses lost;
  /// What a fill put in place of lost elements, which the backward pass needs again.
  struct Filled {
    std::vector<sim::ElementRange> lost;
    comm::DeviceBuffer<E> values;
  };
  struct Hop {
    Absences absent;
    Filled keys;
    Filled values;
    StoppedElements stopped;  ///< empty unless Communicator::stops_lost_gradients()
  };
  std::vector<Hop> hops;  ///< of the ring

  /// On the device.
  std::uint64_t bytes() const;
};

/// The same messages, losses and results as SequenceAttention's, in the memory of a device and the type E. The running
/// output and the gradients of a ring are rounded to E after each hop. Owner: one rank. Ranks: all make the same calls.
template <class E>
class DeviceSequenceAttention {
 public:
  /// Group and stream are borrowed. Ranks, errors: as SequenceAttention's.
  DeviceSequenceAttention(comm::Communicator& group, const SequenceFactors& factors, std::int64_t heads,
                          comm::Stream& stream);

  /// Views of this rank's tokens, all heads. Throws: ConfigError that names the tensor and the axis for other shapes.
  void forward(const DeviceSequencePass& pass, const DeviceHeadView<const E>& queries,
               const DeviceHeadView<const E>& keys, const DeviceHeadView<const E>& values,
               const DeviceHeadView<E>& output, DeviceSavedAttention<E>& saved);
  /// Sets the gradients of this rank's tokens.
  void backward(const DeviceSequencePass& pass, const DeviceHeadView<const E>& grad_output,
                const DeviceSavedAttention<E>& saved, const DeviceAttentionGradients<E>& gradients);

  /// Of working memory on the device, now.
  std::uint64_t bytes() const;

 private:
  struct Block {
    comm::DeviceBuffer<E> keys;
    comm::DeviceBuffer<E> values;
  };
  void check(const DeviceSequencePass& pass, std::string_view tensor, const HeadShape& got,
             const HeadShape& like) const {
    check_rank_shape(pass.parts, factors_, rank_, heads_, tensor, got, like);
  }
  /// The parts of the ring, and the patterns of this rank's queries with the keys of each.
  struct Planned {
    SequenceParts parts;
    std::int64_t width;
    std::vector<std::vector<TokenRun>> runs;
    std::vector<DeviceAttentionPattern> patterns;
  };

  const Planned& plan(const SequenceParts& parts, std::int64_t width);
  /// The tokens of a part of the ring, with this rank's heads.
  HeadShape shape_of(const Planned& planned, int part, const HeadShape& like) const;
  std::vector<std::uint64_t> by_heads(const HeadShape& local) const;
  std::vector<std::uint64_t> by_tokens(const SequenceParts& parts, const HeadShape& local) const;
  int ring_rank() const { return ring_ == nullptr ? 0 : ring_->rank(); }
  int part_after(int hops) const { return (ring_rank() + factors_.ring - hops) % factors_.ring; }
  void to_heads(const DeviceSequencePass& pass, const DeviceHeadView<const E>& local, comm::DeviceSpan<E> gathered,
                const comm::Message& message, const LostElements& stopped = {});
  void to_tokens(const DeviceSequencePass& pass, comm::DeviceSpan<const E> gathered, const DeviceHeadView<E>& local,
                 const comm::Message& message);
  DeviceAttentionInputs<E> inputs_of(const DeviceSequencePass& pass, const DeviceSavedAttention<E>& saved,
                                     const HeadShape& queries, comm::DeviceSpan<const E> keys,
                                     comm::DeviceSpan<const E> values, const HeadShape& of_keys,
                                     const Absences& absent);
  void zero_lost(const LostElements& lost, comm::DeviceSpan<E> elems);
  /// Flags of the block that goes on, and of the one that comes, by the reliable class control.
  void exchange_flags(std::string_view name, const FlagWords& sent, FlagWords& received, int layer, int hop);
  template <class T>
  comm::DeviceSpan<T> grown(comm::DeviceBuffer<T>& buffer, std::uint64_t count) {
    return room_in(buffer, count, "attention over sequence ranks", stream_);
  }
  void save_fill(comm::DeviceSpan<const E> received, typename DeviceSavedAttention<E>::Filled& filled);
  void fill_again(const typename DeviceSavedAttention<E>::Filled& filled, comm::DeviceSpan<E> received);

  comm::Stream& stream_;
  int rank_;
  SequenceFactors factors_;
  std::int64_t heads_;
  std::vector<std::unique_ptr<comm::Communicator>> owned_;
  comm::Communicator* ulysses_;          ///< null: one rank
  comm::Communicator* ring_;             ///< likewise
  std::vector<std::uint64_t> heads_of_;  ///< of each Ulysses rank
  std::optional<Planned> planned_;
  comm::DeviceBuffer<E> packed_;
  comm::DeviceBuffer<E> grad_output_;
  comm::DeviceBuffer<E> grad_queries_;
  Block grad_own_;
  Block current_, next_, gradients_, next_gradients_;
  comm::DeviceBuffer<float> delta_;
  comm::DeviceBuffer<std::uint8_t> absent_;
  comm::DeviceBuffer<std::uint64_t> flags_, next_flags_;
  typename DeviceSavedAttention<E>::Filled kept_keys_, kept_values_;  ///< gradients at stopped elements
};

}  // namespace droptest::models
