// SPDX-License-Identifier: Apache-2.0
// DilatedAttention on devices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/device_buffer.h"
#include "models/sequence/device_heads.h"
#include "models/sequence/device_sequence_attention.h"
#include "models/sequence/dilated_attention.h"

namespace droptest::models {

/// The saved activations of a forward pass, as SavedDilatedAttention; the output is the caller's.
template <class E>
struct DeviceSavedDilatedAttention {
  /// Keys and values of other ranks in one branch: [gathered tokens, batch, heads, width].
  struct Gathered {
    comm::DeviceBuffer<E> keys;
    comm::DeviceBuffer<E> values;
    Absences absent;
    LostElements lost_keys;  ///< as SavedDilatedAttention's
    LostElements lost_values;
  };
  comm::DeviceBuffer<E> queries;
  comm::DeviceBuffer<E> keys;
  comm::DeviceBuffer<E> values;
  comm::DeviceBuffer<float> log_sum_exp;
  std::vector<Gathered> gathered;  ///< by branch

  /// On the device.
  std::uint64_t bytes() const;
};

/// The same messages, losses and results as DilatedAttention's, in the memory of a device and the type E. The running
/// output and the gradients are rounded to E after each branch. Owner: one rank. Ranks: all make the same calls.
template <class E>
class DeviceDilatedAttention {
 public:
  /// Group and stream are borrowed; a null group: one rank. Errors: as DilatedAttention's.
  DeviceDilatedAttention(comm::Communicator* group, DilatedOptions options, std::int64_t heads, comm::Stream& stream);

  /// Views of this rank's tokens, all heads. Throws: ConfigError that names the tensor and the axis for other shapes.
  void forward(const DeviceSequencePass& pass, const DeviceHeadView<const E>& queries,
               const DeviceHeadView<const E>& keys, const DeviceHeadView<const E>& values,
               const DeviceHeadView<E>& output, DeviceSavedDilatedAttention<E>& saved);
  /// Adds to the gradients of this rank's tokens. `output` is forward's.
  void backward(const DeviceSequencePass& pass, const DeviceHeadView<const E>& output,
                const DeviceHeadView<const E>& grad_output, const DeviceSavedDilatedAttention<E>& saved,
                const DeviceAttentionGradients<E>& gradients);

  /// Of working memory on the device, now.
  std::uint64_t bytes() const;

 private:
  using Saved = DeviceSavedDilatedAttention<E>;
  using Gathered = typename Saved::Gathered;
  /// The heads of tokens that this rank sends to each rank, or receives from it, in the order of the messages.
  struct Travelling {
    std::vector<TokenHead> rows;
    std::vector<std::uint64_t> rows_of;  ///< by rank
    comm::DeviceBuffer<TokenHead> on_device;

    std::vector<std::uint64_t> elems(const HeadShape& shape) const;
  };
  struct Branch {
    DeviceAttentionPattern local;
    DeviceAttentionPattern gathered;
    Travelling sent;
    Travelling received;
    std::int64_t gathered_tokens = 0;
  };
  struct Planned {
    SequenceParts parts;
    std::int64_t width;
    std::vector<Branch> branches;
  };

  const std::vector<Branch>& plan(const SequenceParts& parts, std::int64_t width);
  Travelling travelling(const std::vector<std::vector<TokenRun>>& by_rank);
  HeadShape local_shape(const DeviceSequencePass& pass, const HeadShape& like) const;
  static HeadShape gathered_shape(const Branch& branch, const HeadShape& local);
  DeviceAttentionInputs<E> local_inputs(const DeviceSequencePass& pass, const Saved& saved, const HeadShape& local);
  DeviceAttentionInputs<E> gathered_inputs(const DeviceSequencePass& pass, const Saved& saved, const HeadShape& local,
                                           const Gathered& gathered, const HeadShape& shape);
  void gather(const Branch& branch, const DeviceHeadView<const E>& from, const DeviceHeadView<E>& to, Absences* absent,
              LostElements* stopped, const comm::Message& about);
  void scatter(const Branch& branch, const DeviceHeadView<const E>& from, const DeviceHeadView<E>& to,
               const LostElements& stopped, const comm::Message& about);
  void attend_branch(const Branch& branch, const DeviceSequencePass& pass, const Saved& saved, const HeadShape& local,
                     const Gathered& gathered, const DeviceHeadView<E>& output, comm::DeviceSpan<float> log_sum_exp);
  template <class T>
  comm::DeviceSpan<T> room(comm::DeviceBuffer<T>& buffer, std::uint64_t count) {
    return room_in(buffer, count, "dilated attention", stream_);
  }

  comm::Communicator* group_;
  comm::Stream& stream_;
  int rank_;
  DilatedOptions options_;
  std::int64_t heads_;
  std::optional<Planned> planned_;  ///< of the last parts
  comm::DeviceBuffer<E> sent_, received_;
  comm::DeviceBuffer<E> grad_keys_, grad_values_;  ///< of gathered tokens
  comm::DeviceBuffer<float> delta_;
  comm::DeviceBuffer<std::uint8_t> absent_;
  // Of one branch, where the gradient through the weights is stopped.
  comm::DeviceBuffer<E> output_, weighted_grad_;
  comm::DeviceBuffer<float> log_sum_exp_;
};

}  // namespace droptest::models
