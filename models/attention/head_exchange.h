// SPDX-License-Identifier: Apache-2.0
// Ulysses' all-to-all: between a rank's tokens with all heads, and all tokens with a rank's heads.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "models/attention/head_view.h"
#include "models/attention/host_heads.h"
#include "models/attention/lost_elements.h"
#include "models/attention/sequence_factors.h"
#include "sim/error.h"

namespace droptest::models {

/// The heads are distributed over the ranks of a group; the first heads % ranks ranks have one head more. The tensor of
/// a rank's heads is [tokens, batch, heads, width], with the tokens of rank 0 first. Source: DeepSpeed-Ulysses (Jacobs
/// et al. 2023). Owner: one rank. Ranks: all make the same calls. Memory: HostHeads, DeviceHeads or PlannedHeads.
template <class Memory>
class HeadExchangeOf {
  using E = typename Memory::Element;
  using Processor = typename Memory::Processor;
  template <class U>
  using Span = typename Memory::template Span<U>;
  template <class U>
  using View = typename Memory::template View<U>;

 public:
  /// `group` is borrowed; null: one rank, and calls only copy. Throws: ConfigError for fewer heads than ranks.
  HeadExchangeOf(comm::Communicator* group, std::int64_t heads);

  /// The number of this rank's heads, and the number of the first one over all ranks.
  std::int64_t heads() const { return static_cast<std::int64_t>(heads_[static_cast<std::size_t>(rank_)]); }
  std::int64_t first_head() const { return first_head_; }
  /// Communicator::leaves_lost_out() of the group.
  bool leaves_lost_out(sim::TrafficClass traffic_class) const {
    return group_ != nullptr && group_->leaves_lost_out(traffic_class);
  }

  /// Communicator::stops_lost_gradients() of the group.
  bool stops_lost_gradients(sim::TrafficClass traffic_class) const {
    return group_ != nullptr && group_->stops_lost_gradients(traffic_class);
  }

  /// Sends the heads of this rank's tokens to the ranks of the heads. `lengths` has the number of tokens of each rank;
  /// `local` has this rank's tokens with all heads. Zeros are sent in the place of the elements `stopped`, which
  /// to_tokens() reported as lost for the same shape. Shapes: gathered [sum of lengths, batch, heads(), width].
  void to_heads(const View<const E>& local, std::span<const std::int64_t> lengths, Span<E> gathered,
                const comm::Message& message, Processor& processor, const LostElements& stopped = {});
  /// The inverse of to_heads(). Message::lost counts elements in the order of the messages: the heads of rank 0 first.
  void to_tokens(Span<const E> gathered, std::span<const std::int64_t> lengths, const View<E>& local,
                 const comm::Message& message, Processor& processor);

  /// The present size of the working memory.
  std::uint64_t bytes() const { return Memory::bytes_of(packed_); }

 private:
  /// Counts the elements of this rank's tokens by the rank of their heads, and those of this rank's heads by the rank
  /// of their tokens.
  void count(const HeadShape& local, std::span<const std::int64_t> lengths);

  static constexpr const char* kMemoryOf =
      "attention over sequence ranks";  ///< names the memory in the error of a full device

  comm::Communicator* group_;
  int rank_;
  std::vector<std::uint64_t> heads_;
  std::int64_t first_head_ = 0;
  // The element counts of the current call.
  std::vector<std::uint64_t> by_heads_;
  std::vector<std::uint64_t> by_tokens_;
  typename Memory::template Buffer<E> packed_;
};

/// The exchange in host memory.
template <class T>
using HeadExchange = HeadExchangeOf<HostHeads<T>>;

template <class Memory>
HeadExchangeOf<Memory>::HeadExchangeOf(comm::Communicator* group, std::int64_t heads)
    : group_(group), rank_(group == nullptr ? 0 : group->rank()) {
  const int ranks = group == nullptr ? 1 : group->world_size();
  heads_ = dealt_heads(heads, ranks);
  first_head_ = static_cast<std::int64_t>(std::accumulate(heads_.begin(), heads_.begin() + rank_, std::uint64_t{0}));
}

template <class Memory>
void HeadExchangeOf<Memory>::count(const HeadShape& local, std::span<const std::int64_t> lengths) {
  DROPTEST_CHECK(lengths.size() == heads_.size() && lengths[static_cast<std::size_t>(rank_)] == local.tokens,
                 "tokens of another group");
  by_heads_.clear();
  by_tokens_.clear();
  for (const std::uint64_t heads : heads_) {
    by_heads_.push_back(HeadShape{local.batch, local.tokens, static_cast<std::int64_t>(heads), local.width}.elems());
  }
  for (const std::int64_t tokens : lengths) {
    by_tokens_.push_back(HeadShape{local.batch, tokens, heads(), local.width}.elems());
  }
}

template <class Memory>
void HeadExchangeOf<Memory>::to_heads(const View<const E>& local, std::span<const std::int64_t> lengths,
                                      Span<E> gathered, const comm::Message& message, Processor& processor,
                                      const LostElements& stopped) {
  if (group_ == nullptr) return Memory::copy(local, Memory::sequence_first(gathered, local.shape), processor);
  count(local.shape, lengths);
  const Span<E> packed = Memory::room(packed_, local.shape.elems(), kMemoryOf, processor);
  std::int64_t first = 0;
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < heads_.size(); ++rank) {
    const View<const E> part = local.heads(first, static_cast<std::int64_t>(heads_[rank]));
    Memory::copy(part, Memory::sequence_first(packed.subspan(at, by_heads_[rank]), part.shape), processor);
    first += part.shape.heads;
    at += by_heads_[rank];
  }
  Memory::zero_lost(stopped, packed, processor);
  group_->all_to_all(Memory::tensor(Span<const E>(packed), processor), by_heads_, Memory::tensor(gathered, processor),
                     by_tokens_, message);
}

template <class Memory>
void HeadExchangeOf<Memory>::to_tokens(Span<const E> gathered, std::span<const std::int64_t> lengths,
                                       const View<E>& local, const comm::Message& message, Processor& processor) {
  if (group_ == nullptr) return Memory::copy(Memory::sequence_first(gathered, local.shape), local, processor);
  count(local.shape, lengths);
  const Span<E> packed = Memory::room(packed_, local.shape.elems(), kMemoryOf, processor);
  group_->all_to_all(Memory::tensor(gathered, processor), by_tokens_, Memory::tensor(packed, processor), by_heads_,
                     message);
  std::int64_t first = 0;
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < heads_.size(); ++rank) {
    const View<E> part = local.heads(first, static_cast<std::int64_t>(heads_[rank]));
    Memory::copy(Memory::sequence_first(Span<const E>(packed.subspan(at, by_heads_[rank])), part.shape), part,
                 processor);
    first += part.shape.heads;
    at += by_heads_[rank];
  }
}

}  // namespace droptest::models
