// SPDX-License-Identifier: Apache-2.0
// Ring attention: keys and values travel from rank to rank, and every rank's queries meet all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "models/sequence/absence.h"
#include "models/sequence/lost_elements.h"
#include "models/sequence/token_attention.h"

namespace droptest::models {

/// The losses of the keys and values that a rank received in a forward pass, by hop. They are repeated in the backward
/// pass, whose values are so those of the forward pass that took place.
template <class T>
struct RingLosses {
  struct Hop {
    Absences absent;         ///< empty: nothing leaves the softmax
    FilledElements<T> keys;  ///< where lost elements stay in it
    FilledElements<T> values;
    StoppedElements stopped;  ///< empty unless stops_lost_gradients()
  };
  std::vector<Hop> hops;
};

/// One call: the same on all ranks but for what is this rank's. Borrowed.
template <class T>
struct RingPass {
  HeadView<const T> queries;
  std::span<const T> keys;                       ///< of this rank: [tokens, batch, heads, width]
  std::span<const T> values;                     ///< likewise
  std::span<const std::uint8_t> absent;          ///< of this rank's keys, as AttentionInputs::absent
  std::span<const std::vector<TokenRun>> parts;  ///< the tokens of each rank
  const AttentionMask& mask;
  int layer = -1;
  DropoutMask dropout{};  ///< as AttentionInputs::dropout
};

/// Attention over a group of ranks. Forward, keys and values take ranks - 1 hops from rank r to r + 1. Backward they
/// take the same hops again (Delivery::kCertain, with the losses of the forward pass), and the gradients with respect
/// to them as many. Under Communicator::leaves_lost_out() the flags of absent keys travel with them, and under
/// stops_lost_gradients() from the second hop on those of lost elements, in class control.
/// Source: Liu, Zaharia and Abbeel 2023. Owner: one rank. Ranks: all make the same calls. Classes: sequence_forward,
/// sequence_backward.
template <class T>
class AttentionRing {
 public:
  /// The group is borrowed; null: one rank.
  explicit AttentionRing(comm::Communicator* group) : group_(group) {}

  int ranks() const { return group_ == nullptr ? 1 : group_->world_size(); }
  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }

  /// output and log_sum_exp [batch, heads, queries] over all keys; `losses` is for backward().
  void forward(const RingPass<T>& pass, const HeadView<T>& output, std::span<T> log_sum_exp, RingLosses<T>& losses,
               const Team& team);
  /// Adds to the gradients of this rank's queries, keys and values; the latter two have the layout of RingPass.
  void backward(const RingPass<T>& pass, const AttentionResults<T>& results, const RingLosses<T>& losses,
                const AttentionGradients<T>& gradients, const Team& team);

 private:
  /// Keys and values of one rank on their way, or the gradients with respect to them.
  struct Block {
    std::vector<T> keys;
    std::vector<T> values;
  };
  HeadShape shape_of(const RingPass<T>& pass, int part) const;
  /// The part that this rank has after so many hops.
  int part_after(int hops) const { return (rank() + ranks() - hops) % ranks(); }
  AttentionInputs<T> inputs_of(const RingPass<T>& pass, int part, std::span<const T> keys, std::span<const T> values,
                               std::span<const std::uint8_t> absent) const;
  AttentionPattern pattern(const RingPass<T>& pass, int part) const;
  std::span<T> scratch(std::int64_t width, const Team& team);

  comm::Communicator* group_;
  Block current_;
  Block next_;
  Block gradients_;
  Block next_gradients_;
  std::vector<T> scratch_;
};

}  // namespace droptest::models
