// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/path_registry.h"

#include <string>

#include "comm/lossy/contribution_path.h"
#include "comm/lossy/direct_path.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

template <class P>
std::unique_ptr<Path> make(const PathContext& context) {
  return std::make_unique<P>(context);
}

}  // namespace

const std::vector<PathEntry>& paths() {
  static const std::vector<PathEntry> entries = {
      {"contribution", "in-network aggregation: a packet of one rank never reaches the aggregation point, all miss it",
       RankEquality::kStayEqual, LossShorthand::kReduceHalf, &make<ContributionPath>, SenderFeedback::kCorrectsSends},
      {"direct", "reduce-scatter by direct exchange, then all-gather; one (source, destination) packet at a time",
       RankEquality::kReduceHalfOnly, LossShorthand::kBothHalves, &make<DirectPath>, SenderFeedback::kCorrectsSends},
  };
  return entries;
}

const PathEntry& path_entry(std::string_view name) {
  std::string known;
  for (const PathEntry& entry : paths()) {
    if (entry.name == name) return entry;
    known.append(known.empty() ? "" : ", ").append(entry.name);
  }
  throw ConfigError("path: got \"" + std::string(name) + "\", want one of " + known);
}

}  // namespace droptest::comm
