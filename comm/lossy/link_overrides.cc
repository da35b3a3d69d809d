// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/link_overrides.h"

#include <algorithm>

namespace droptest::comm {

bool RankSet::contains(std::uint16_t rank) const {
  return everyone() || std::any_of(ranges.begin(), ranges.end(),
                                   [rank](const auto& range) { return range.first <= rank && rank <= range.second; });
}

bool LinkOverride::matches(const sim::Link& link) const {
  if (!sources.contains(link.source)) return false;
  if (!needs_destination()) return true;
  if (link.destination == sim::Link::kEveryDestination || !destinations.contains(link.destination)) return false;
  if (!ranks.contains(link.source) && !ranks.contains(link.destination)) return false;
  if (groups == Groups::kAny) return true;
  const bool same = link.source / group_ranks == link.destination / group_ranks;
  return same == (groups == Groups::kWithin);
}

const sim::LossProcess* loss_of_link(const std::vector<LinkOverride>& overrides, const sim::Link& link,
                                     const sim::LossProcess* otherwise) {
  const auto last = std::find_if(overrides.rbegin(), overrides.rend(),
                                 [&link](const LinkOverride& one) { return one.matches(link); });
  return last == overrides.rend() ? otherwise : last->loss.get();
}

}  // namespace droptest::comm
