// SPDX-License-Identifier: Apache-2.0
// Ulysses' all-to-all: from a rank's tokens with all heads to all tokens with a rank's heads, and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "models/sequence/head_view.h"
#include "sim/packets/packetizer.h"

namespace droptest::models {

/// Heads dealt over the ranks of a group: the first heads % ranks of them have one more. The tensor of a rank's heads
/// is [tokens, batch, heads, width], the tokens of rank 0 first. Source: DeepSpeed-Ulysses (Jacobs et al. 2023). Owner:
/// one rank. Ranks: all make the same calls.
template <class T>
class HeadExchange {
 public:
  /// The group is borrowed; null: one rank, whose calls copy. Throws: ConfigError for fewer heads than ranks.
  HeadExchange(comm::Communicator* group, std::int64_t heads);

  int ranks() const { return static_cast<int>(heads_.size()); }
  /// The heads of this rank, of which `first_head` is the first.
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

  /// `lengths` are the tokens of each rank; `local` has this rank's, with all heads. Shapes: gathered [sum of lengths,
  /// batch, heads(), width]. Elements sent to other ranks: those of `local` but for this rank's heads. `stopped`: what
  /// to_tokens() found lost for the same shape; zeros are sent in the place of these elements.
  void to_heads(const HeadView<const T>& local, std::span<const std::int64_t> lengths, std::span<T> gathered,
                const comm::Message& message, std::span<const sim::ElementRange> stopped = {});
  /// The inverse. Message::lost has the elements in the order of messages: the heads of rank 0 first.
  void to_tokens(std::span<const T> gathered, std::span<const std::int64_t> lengths, const HeadView<T>& local,
                 const comm::Message& message);

 private:
  /// Elements of all heads of this rank's tokens by the rank of the heads, and of this rank's heads by the tokens'
  /// rank.
  void count(const HeadShape& local, std::span<const std::int64_t> lengths);

  comm::Communicator* group_;
  int rank_;
  std::vector<std::uint64_t> heads_;
  std::int64_t first_head_ = 0;
  // Of the current call.
  std::vector<std::uint64_t> by_heads_;
  std::vector<std::uint64_t> by_tokens_;
  std::vector<T> packed_;
};

}  // namespace droptest::models
