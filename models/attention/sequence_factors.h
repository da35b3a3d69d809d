// SPDX-License-Identifier: Apache-2.0
// How the ranks of a sequence group exchange heads, and form rings.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace droptest::models {

/// A sequence group as a grid of `ring` x `ulysses` ranks. The ranks u + ulysses x r with the same r exchange heads;
/// those with the same u form a ring. Source: Fang and Zhao 2024 (USP).
struct SequenceFactors {
  int ulysses = 1;
  int ring = 1;
};

/// This rank's number in the group; null: one rank. Throws: ConfigError if the product of the factors is not the number
/// of ranks.
int checked_rank(const comm::Communicator* group, const SequenceFactors& factors);

/// The subgroup of `all` with this rank: `ranks` ranks at distances of `stride`. Null for one rank; `all` itself for
/// all ranks. A new group is appended to `owned`. Ranks: all of `all`, which may be null.
comm::Communicator* part_of_group(comm::Communicator* all, int ranks, int stride,
                                  std::vector<std::unique_ptr<comm::Communicator>>& owned);

/// The number of heads of each rank of a group that exchanges heads; the first heads % ranks ranks have one more.
/// Throws: ConfigError for fewer heads than ranks.
std::vector<std::uint64_t> dealt_heads(std::int64_t heads, int ranks);

}  // namespace droptest::models
