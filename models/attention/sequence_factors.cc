// SPDX-License-Identifier: Apache-2.0
#include "models/attention/sequence_factors.h"

#include <string>

#include "sim/error.h"

namespace droptest::models {

int checked_rank(const comm::Communicator* group, const SequenceFactors& factors) {
  const int ranks = group == nullptr ? 1 : group->world_size();
  if (factors.ulysses < 1 || factors.ring < 1 || factors.ulysses * factors.ring != ranks) {
    throw ConfigError("sequence: got ulysses " + std::to_string(factors.ulysses) + " x ring " +
                      std::to_string(factors.ring) + ", want a product of " + std::to_string(ranks) + " ranks");
  }
  return group == nullptr ? 0 : group->rank();
}

comm::Communicator* part_of_group(comm::Communicator* all, int ranks, int stride,
                                  std::vector<std::unique_ptr<comm::Communicator>>& owned) {
  if (all == nullptr) return nullptr;
  if (ranks == all->world_size()) return all->world_size() == 1 ? nullptr : all;
  if (ranks == 1) return nullptr;
  const int first = all->rank() - all->rank() / stride % ranks * stride;
  std::vector<int> members;
  for (int i = 0; i < ranks; ++i) members.push_back(first + i * stride);
  return owned.emplace_back(all->subgroup(members)).get();
}

std::vector<std::uint64_t> dealt_heads(std::int64_t heads, int ranks) {
  if (heads < ranks) {
    throw ConfigError("ulysses: got " + std::to_string(heads) + " heads for " + std::to_string(ranks) +
                      " ranks, want at least one head for each rank: fewer ranks, or a ring");
  }
  return comm::even_counts(static_cast<std::uint64_t>(heads), ranks);
}

}  // namespace droptest::models
