// SPDX-License-Identifier: Apache-2.0
// Ulysses around a caller's own attention, as DeepSpeed's DistributedAttention.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "models/attention/absence.h"
#include "models/attention/head_exchange.h"
#include "models/attention/lost_elements.h"
#include "models/attention/sequence_parts.h"

namespace droptest::models {

/// The layout of that name: "batch_first" (PyTorch; DeepSpeed's scatter_idx 2, gather_idx 1, batch_dim_idx 0) or
/// "sequence_first" (Megatron-LM; scatter_idx 2, gather_idx 0, batch_dim_idx 1). Throws: ConfigError that lists the
/// names.
TokenLayout token_layout_from_name(std::string_view name);

/// A combined mask [batch, queries, keys] to be added to scaled scores; null: none. Shared by the calls that use it.
template <class T>
using SharedMask = std::shared_ptr<const std::vector<T>>;

/// The whole sequence with some of the heads, as tensors without gaps in the caller's layout. Borrowed.
template <class T>
struct LocalInputs {
  HeadView<const T> queries;
  HeadView<const T> keys;
  HeadView<const T> values;
  std::span<const T> mask;               ///< the values of a SharedMask; empty: none
  std::span<const std::uint8_t> absent;  ///< flags of absent keys, see AttentionInputs::absent; empty: none
  std::int64_t first_head = 0;           ///< the number of the first of these heads, over all ranks
};

/// A caller's own attention. A query that sees no key has the output 0.
template <class T>
class LocalAttention {
 public:
  virtual ~LocalAttention() = default;
  /// Sets the output.
  virtual void forward(const LocalInputs<T>& inputs, const HeadView<T>& output) = 0;
  /// Sets the gradients, from the inputs and the output of the forward call.
  virtual void backward(const LocalInputs<T>& inputs, const HeadView<const T>& output,
                        const HeadView<const T>& grad_output, const AttentionGradients<T>& gradients) = 0;
};

/// Distributes the heads over the ranks of a group, calls the local attention on the whole sequence with a rank's
/// heads, and sends the output back to the ranks of the tokens. There is no padding: a rank may have any number of
/// tokens, also none or all. Several objects may use one group. Messages: as SequenceAttention. Owner: one rank. Ranks:
/// all make the same calls. A backward() belongs to the last forward().
template <class T>
class DistributedAttention {
 public:
  /// `group` and `local` are borrowed. `heads` is the number of heads of all ranks. Throws: ConfigError for fewer heads
  /// than ranks.
  DistributedAttention(comm::Communicator& group, LocalAttention<T>& local, TokenLayout layout, std::int64_t heads,
                       std::int64_t width);

  /// The next calls have `batch` sequences, and this rank has `tokens` consecutive tokens of each. Ranks: all, whenever
  /// the length of any rank changes. Other calls exchange no lengths.
  void set_lengths(std::int64_t batch, std::int64_t tokens);
  const SequenceParts& parts() const { return parts_; }

  /// The mask for forward(); null if every query sees every key. A mask with causality only is cached by shape. The
  /// caller keeps any other mask for all layers that use it. Throws: ConfigError if the mask covers other sequences.
  SharedMask<T> combine(const AttentionMask& mask);

  /// This rank's tokens with all heads. Extents and elements are in the order of the layout.
  struct Input {
    std::span<const T> elems;
    std::array<std::int64_t, 4> extents;
  };
  /// Computes the output of this rank's tokens. `mask` is a result of combine(). Throws: ConfigError that names the
  /// tensor and the axis for a wrong shape.
  void forward(const Input& queries, const Input& keys, const Input& values, const SharedMask<T>& mask,
               std::span<T> output, int layer = -1);
  /// Sets the gradients of this rank's tokens. Throws: as forward().
  void backward(const Input& grad_output, std::span<T> grad_queries, std::span<T> grad_keys, std::span<T> grad_values,
                int layer = -1);

 private:
  HeadShape local_shape() const { return {batch_, parts_.length_of(group_.rank()), heads_, width_}; }
  HeadShape gathered_shape() const { return {batch_, parts_.length(), exchange_.heads(), width_}; }
  HeadView<T> gather(std::string_view name, const Input& input, sim::TrafficClass traffic_class, int layer,
                     std::vector<T>& to, LostElements* lost, const LostElements& stopped);
  void scatter(std::string_view name, const std::vector<T>& from, std::span<T> to, sim::TrafficClass traffic_class,
               int layer, LostElements* lost, const LostElements& stopped);
  LocalInputs<T> inputs() const;

  comm::Communicator& group_;
  LocalAttention<T>& local_;
  TokenLayout layout_;
  std::int64_t heads_;
  std::int64_t width_;
  HeadExchange<T> exchange_;
  SequenceParts parts_;
  std::int64_t batch_ = 0;
  std::map<std::array<std::int64_t, 2>, SharedMask<T>> causal_;  ///< the key is [batch, length]
  // The tensors of the current forward call, in the caller's layout.
  std::vector<T> queries_;
  std::vector<T> keys_;
  std::vector<T> values_;
  std::vector<T> output_;
  Absences absent_;
  AttentionLosses lost_;  ///< the lost elements of the messages, as in SavedAttention
  SharedMask<T> mask_;
  std::vector<T> travelling_;  // elements in the order of HeadExchange
};

}  // namespace droptest::models
