// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo_exchange.h"

#include <algorithm>

namespace droptest::comm {
namespace {

constexpr std::size_t kMostCapacity = std::size_t{64} << 10;
constexpr std::size_t kMostMemory = std::size_t{4} << 20;  ///< bytes of one exchange's messages to or from all ranks
constexpr std::size_t kLeastCapacity = std::size_t{4} << 10;
constexpr std::size_t kAlignment = 64;  ///< alignment of each message, whatever the number of ranks

}  // namespace

GlooExchange::GlooExchange(GlooMesh& mesh, std::span<const int> world_ranks, int rank, std::uint64_t first_slot,
                           std::uint64_t slot_step)
    : mesh_(mesh),
      world_ranks_(world_ranks.begin(), world_ranks.end()),
      rank_(rank),
      first_slot_(first_slot),
      slot_step_(slot_step),
      capacity_(std::clamp(kMostMemory / world_ranks.size() / kAlignment * kAlignment, kLeastCapacity, kMostCapacity)),
      outgoing_(std::make_unique_for_overwrite<std::byte[]>(world_ranks.size() * capacity_)) {
  for (std::size_t parity = 0; parity < 2; ++parity) {
    incoming_[parity] = std::make_unique_for_overwrite<std::byte[]>(world_ranks.size() * capacity_);
    receives_[parity].resize(world_ranks.size());
  }
}

void GlooExchange::post(std::uint64_t exchange) {
  const std::size_t parity = exchange % 2;
  for (int r = 0; r < static_cast<int>(world_ranks_.size()); ++r) {
    if (r == rank_) continue;
    const auto index = static_cast<std::size_t>(r);
    receives_[parity][index].emplace(mesh_.start_receive({&incoming_[parity][place(r)], capacity_}, world_ranks_[index],
                                                         first_slot_ + exchange * slot_step_));
  }
  posted_ = exchange;
}

void GlooExchange::run(std::span<const std::size_t> sizes) {
  const std::uint64_t exchange = exchanges_ + 1;
  // Receives are posted before this rank's messages depart: a rank that has them may send those of the next exchange.
  while (posted_ < exchange + 1) post(posted_ + 1);
  std::vector<GlooMesh::Transfer> sends;
  const int size = static_cast<int>(world_ranks_.size());
  // Each rank begins with its right neighbour, so that not all send to the same one at once.
  for (int i = 1; i < size; ++i) {
    const int r = (rank_ + i) % size;
    const auto index = static_cast<std::size_t>(r);
    sends.push_back(
        mesh_.start_send(outgoing(r).first(sizes[index]), world_ranks_[index], first_slot_ + exchange * slot_step_));
  }
  for (std::optional<GlooMesh::Transfer>& receive : receives_[exchange % 2]) {
    if (receive) mesh_.finish(*receive);
  }
  for (GlooMesh::Transfer& send : sends) mesh_.finish(send);
  exchanges_ = exchange;
}

}  // namespace droptest::comm
