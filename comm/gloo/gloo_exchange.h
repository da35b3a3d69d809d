// SPDX-License-Identifier: Apache-2.0
// Small messages among all ranks of a group, in one exchange.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/gloo/gloo_mesh.h"

namespace droptest::comm {

/// Each rank sends one message to each other rank of its group, repeatedly.
///
/// Gloo asks a receiver whether it is ready before it sends, which takes a round trip. Here a receive is posted one
/// exchange ahead: a rank that takes part in exchange e + 1 has the messages of exchange e, and their senders have
/// posted the receives of e + 1 before. Thread safety: none. Ranks: all of the group, in a CallScope of the mesh.
class GlooExchange {
 public:
  /// `mesh` is borrowed and outlives this. `world_ranks` are those of the group; this rank is at `rank`. `first_slot`
  /// is the first of the group's own slots, one for each exchange, `slot_step` apart.
  GlooExchange(GlooMesh& mesh, std::span<const int> world_ranks, int rank, std::uint64_t first_slot,
               std::uint64_t slot_step);

  /// Maximum bytes of a message.
  std::size_t capacity() const { return capacity_; }

  /// The buffer of the message to a rank of the group; capacity() bytes.
  std::span<std::byte> outgoing(int rank) { return {&outgoing_[place(rank)], capacity_}; }

  /// Sends the first sizes[r] bytes of outgoing(r) to each rank r, and returns when their messages have arrived.
  /// Throws: CommError.
  void run(std::span<const std::size_t> sizes);

  /// The message from a rank of the group, at the beginning of capacity() bytes. Valid until the next run().
  std::span<const std::byte> incoming(int rank) const { return {&incoming_[exchanges_ % 2][place(rank)], capacity_}; }

 private:
  std::size_t place(int rank) const { return static_cast<std::size_t>(rank) * capacity_; }
  void post(std::uint64_t exchange);

  GlooMesh& mesh_;
  std::vector<int> world_ranks_;
  int rank_;
  std::uint64_t first_slot_;
  std::uint64_t slot_step_;
  std::size_t capacity_;
  std::uint64_t exchanges_ = 0;  ///< number of exchanges so far
  std::uint64_t posted_ = 0;     ///< number of the last exchange with posted receives
  std::unique_ptr<std::byte[]> outgoing_;
  std::array<std::unique_ptr<std::byte[]>, 2> incoming_;  ///< messages of exchanges with even and odd numbers
  std::array<std::vector<std::optional<GlooMesh::Transfer>>, 2> receives_;
};

}  // namespace droptest::comm
