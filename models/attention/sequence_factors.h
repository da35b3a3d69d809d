// SPDX-License-Identifier: Apache-2.0
// How the ranks of a sequence group exchange heads, and form rings.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace droptest::models {

/// The ranks of a sequence group as `ring` x `ulysses`: the ranks u + ulysses x r with the same r exchange heads, those
/// with the same u form a ring. Source: Fang and Zhao 2024 (USP).
struct SequenceFactors {
  int ulysses = 1;
  int ring = 1;
};

/// This rank in the group; null: one rank. Throws: ConfigError where the factors do not give the number of ranks.
int checked_rank(const comm::Communicator* group, const SequenceFactors& factors);

/// The group of this rank and others of `all`, `ranks` in total with `stride` from one to the next: null for one rank,
/// `all` for all. Ranks: all of `all`, which may be null. `owned` gets a group that is made.
comm::Communicator* part_of_group(comm::Communicator* all, int ranks, int stride,
                                  std::vector<std::unique_ptr<comm::Communicator>>& owned);

/// The heads of each of the ranks that exchange heads. Throws: ConfigError for fewer heads than ranks.
std::vector<std::uint64_t> dealt_heads(std::int64_t heads, int ranks);

}  // namespace droptest::models
