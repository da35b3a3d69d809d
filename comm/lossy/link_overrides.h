// SPDX-License-Identifier: Apache-2.0
// Links that differ from the others: one bad cable, one slow rank, lossless links within nodes.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sim/loss/link.h"
#include "sim/loss/loss_process.h"

namespace droptest::comm {

/// A set of world ranks; without ranges: every rank.
struct RankSet {
  std::vector<std::pair<std::uint16_t, std::uint16_t>> ranges;  ///< first and last rank of each range
  bool everyone() const { return ranges.empty(); }
  bool contains(std::uint16_t rank) const;
};

/// A separate loss process for the links that meet all of its conditions. Groups are ranks 0 to g - 1, g to 2 g - 1,
/// ...: the ranks of a node.
struct LinkOverride {
  enum class Groups : std::uint8_t { kAny, kBetween, kWithin };

  RankSet sources;
  RankSet destinations;
  Groups groups = Groups::kAny;
  std::uint16_t group_ranks = 1;                 ///< g
  std::shared_ptr<const sim::LossProcess> loss;  ///< shared by its users; null: reliable
  RankSet ranks = {};                            ///< ranks that must contain the source, the destination or both

  /// Whether a condition is about destinations. Such an override never matches a link whose packets all receivers
  /// share.
  bool needs_destination() const { return !destinations.everyone() || !ranks.everyone() || groups != Groups::kAny; }
  bool matches(const sim::Link& link) const;
};

/// The loss of a link: that of the last matching override, else `otherwise`.
const sim::LossProcess* loss_of_link(const std::vector<LinkOverride>& overrides, const sim::Link& link,
                                     const sim::LossProcess* otherwise);

}  // namespace droptest::comm
