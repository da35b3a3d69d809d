// SPDX-License-Identifier: Apache-2.0
// The cores on which each of several processes at once runs.
#pragma once

#include <cstddef>
#include <vector>

namespace droptest::experiments {

/// Hands every job a set of cores of its own, as equal as they can be, of neighbouring numbers. More jobs than cores
/// get none (empty sets): the kernel then balances them better than any fixed choice.
class CoreShares {
 public:
  CoreShares(const std::vector<int>& cores, std::size_t jobs);

  /// The place of a free share, for one job until it is given back. Some share must be free.
  std::size_t take();
  void give_back(std::size_t place);
  const std::vector<int>& cores(std::size_t place) const;

 private:
  struct Share {
    std::vector<int> cores;
    bool taken = false;
  };
  std::vector<Share> shares_;
};

}  // namespace droptest::experiments
