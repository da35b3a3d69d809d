// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/path_registry.h"

#include <string>

#include "comm/lossy/paths/contribution_path.h"
#include "comm/lossy/paths/direct_path.h"
#include "comm/lossy/paths/hop_path.h"
#include "comm/lossy/paths/power_sgd_path.h"
#include "comm/lossy/paths/top_k_path.h"
#include "sim/error.h"
#include "sim/time/timing_theory.h"

namespace droptest::comm {
namespace {

template <class P>
std::unique_ptr<Path> make(const PathContext& context) {
  return std::make_unique<P>(context);
}

const PathEntry kTopK{.name = "top_k",
                      .summary = "pairs of an index and a value, from each rank to all others",
                      .route = Route::kOneHop,
                      .equality = RankEquality::kReduceHalfOnly,
                      .shorthand = LossShorthand::kBothHalves,
                      .make = &make<TopKPath>,
                      .add_memory = &TopKPath::add_memory,
                      .schedule = &sim::make_direct_schedule,
                      .can_share = true,
                      .feedback = SenderFeedback::kCorrectsSends,
                      .sub_calls = &top_k_calls};
const PathEntry kPowerSgd{.name = "power_sgd",
                          .summary = "two sums of factors at an aggregation point",
                          .route = Route::kAggregated,
                          .equality = RankEquality::kStayEqual,
                          .shorthand = LossShorthand::kReduceHalf,
                          .make = &make<PowerSgdPath>,
                          .add_memory = &PowerSgdPath::add_memory,
                          .schedule = nullptr,
                          .can_share = true,
                          .feedback = SenderFeedback::kCorrectsSends,
                          .sub_calls = &power_sgd_calls};

double aggregation_seconds(int /*ranks*/, double bytes, const sim::LinkCost& link) {
  return sim::aggregation_seconds(bytes, link);
}

/// The properties in which paths of hops differ.
struct OfHops {
  bool has_groups = false;
  bool folds_ranks = false;
  AllReduceSeconds seconds = nullptr;
};

PathEntry of_hops(std::string_view name, std::string_view summary, decltype(PathEntry::schedule) schedule,
                  const OfHops& properties = {}) {
  return {.name = name,
          .summary = summary,
          .route = Route::kManyHops,
          .equality = RankEquality::kReduceHalfOnly,
          .shorthand = LossShorthand::kBothHalves,
          .make = &make<HopPath>,
          .add_memory = &HopPath::add_memory,
          .schedule = schedule,
          .has_groups = properties.has_groups,
          .folds_ranks = properties.folds_ranks,
          .seconds = properties.seconds};
}

}  // namespace

const std::vector<PathEntry>& paths() {
  static const std::vector<PathEntry> entries = {
      {.name = "contribution",
       .summary = "in-network aggregation: a packet of one rank never reaches the aggregation point, all miss it",
       .route = Route::kAggregated,
       .equality = RankEquality::kStayEqual,
       .shorthand = LossShorthand::kReduceHalf,
       .make = &make<ContributionPath>,
       .add_memory = &ContributionPath::add_memory,
       .schedule = nullptr,
       .can_share = true,
       .feedback = SenderFeedback::kCorrectsSends,
       .seconds = &aggregation_seconds},
      {.name = "direct",
       .summary = "reduce-scatter by direct exchange, then all-gather; one (source, destination) packet at a time",
       .route = Route::kOneHop,
       .equality = RankEquality::kReduceHalfOnly,
       .shorthand = LossShorthand::kBothHalves,
       .make = &make<DirectPath>,
       .add_memory = &DirectPath::add_memory,
       .schedule = &sim::make_direct_schedule,
       .can_share = true,
       .feedback = SenderFeedback::kCorrectsSends,
       .seconds = &sim::direct_all_reduce_seconds},
      of_hops("ring", "partial sums go round a ring, then results: a lost hop loses all contributions that it carries",
              &sim::make_ring_schedule, {.seconds = &sim::ring_all_reduce_seconds}),
      of_hops("halving_doubling", "recursive halving, then doubling: log2 N hops; other sizes fold onto a power of two",
              &sim::make_halving_doubling_schedule, {.folds_ranks = true}),
      of_hops("tree", "double binary tree: each half of the data goes up one of two trees, and its sums down again",
              &sim::make_tree_schedule),
      of_hops("hierarchical",
              "groups of group_ranks: sums to each group's leader, a ring of leaders, results to the members",
              &sim::make_hierarchical_schedule, {.has_groups = true}),
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

PathMessages PathContext::messages() const {
  const int point = rank_of_lowest(group.world_size(), [this](int rank) { return group.world_rank(rank); });
  return {network, path, group.world_size(), point};
}

const PathEntry& path_in(const ClassNetwork& network, std::uint64_t elems) {
  if (network.compression.kind == CompressionKind::kTopK) return kTopK;
  if (network.compression.kind == CompressionKind::kPowerSgd) return kPowerSgd;
  return path_entry(network.path_of(elems));
}

}  // namespace droptest::comm
