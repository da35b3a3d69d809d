// SPDX-License-Identifier: Apache-2.0
// Every algorithm's hops: both ends agree, every contribution arrives once, over as many hops as the algorithm says.
#include "sim/schedules/hop_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/error.h"

namespace droptest::sim::hop_schedule_test {
namespace {

using Maker = std::unique_ptr<HopSchedule> (*)(const ScheduleRequest&);
constexpr std::array kCollectives = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                     Collective::kBroadcast};

struct Case {
  std::string name;
  ScheduleRequest request;
  std::unique_ptr<HopSchedule> schedule;
};

// All algorithms and collectives up to 17 ranks, with several roots and group sizes.
std::vector<Case> cases() {
  const std::vector<std::pair<std::string, Maker>> makers = {{"direct", make_direct_schedule},
                                                             {"ring", make_ring_schedule},
                                                             {"halving_doubling", make_halving_doubling_schedule},
                                                             {"tree", make_tree_schedule},
                                                             {"hierarchical", make_hierarchical_schedule}};
  std::vector<Case> result;
  for (const auto& [name, make] : makers) {
    for (const Collective collective : kCollectives) {
      for (int ranks = 1; ranks <= 17; ++ranks) {
        for (int root = 0; root < (collective == Collective::kBroadcast ? ranks : 1); ++root) {
          for (const int group_ranks : {1, 2, 3, 4, 8}) {
            if (name != "hierarchical" && group_ranks > 1) break;
            const ScheduleRequest request{collective, ranks, root, group_ranks};
            result.push_back({name + " collective " + std::to_string(static_cast<int>(collective)) + " of " +
                                  std::to_string(ranks) + " root " + std::to_string(root) + " groups of " +
                                  std::to_string(group_ranks),
                              request, make(request)});
          }
        }
      }
    }
  }
  return result;
}

std::vector<Hop> hops_of_round(const HopSchedule& schedule, int round) {
  std::vector<Hop> hops;
  for (int rank = 0; rank < schedule.ranks(); ++rank) schedule.sends(round, rank, hops);
  return hops;
}

TEST(HopSchedule, BothEndsOfALinkSeeTheSameHopsInTheSameOrder) {
  for (const Case& c : cases()) {
    for (int round = 0; round < c.schedule->rounds(); ++round) {
      std::map<std::pair<int, int>, std::vector<Hop>> sent;
      std::map<std::pair<int, int>, std::vector<Hop>> received;
      for (int rank = 0; rank < c.schedule->ranks(); ++rank) {
        std::vector<Hop> hops;
        c.schedule->sends(round, rank, hops);
        for (const Hop& hop : hops) {
          ASSERT_EQ(hop.source, rank) << c.name;
          ASSERT_NE(hop.destination, rank) << c.name;
          ASSERT_TRUE(hop.destination >= 0 && hop.destination < c.schedule->ranks()) << c.name;
          ASSERT_TRUE(0 <= hop.first_part && hop.first_part <= hop.end_part && hop.end_part <= c.schedule->parts())
              << c.name;
          sent[{hop.source, hop.destination}].push_back(hop);
        }
        hops.clear();
        c.schedule->receives(round, rank, hops);
        for (const Hop& hop : hops) {
          ASSERT_EQ(hop.destination, rank) << c.name;
          received[{hop.source, hop.destination}].push_back(hop);
        }
      }
      ASSERT_EQ(sent, received) << c.name << " round " << round;
    }
  }
}

TEST(HopSchedule, ReduceHopsComeFirstAndNoPartIsSentAndReceivedInOneRound) {
  for (const Case& c : cases()) {
    for (int round = 0; round < c.schedule->rounds(); ++round) {
      std::set<std::pair<int, int>> sent;
      std::set<std::pair<int, int>> received;
      for (const Hop& hop : hops_of_round(*c.schedule, round)) {
        ASSERT_EQ(hop.half, round < c.schedule->reduce_rounds() ? Half::kReduce : Half::kGather) << c.name;
        for (int part = hop.first_part; part < hop.end_part; ++part) {
          sent.insert({hop.source, part});
          received.insert({hop.destination, part});
        }
      }
      for (const auto& place : sent) ASSERT_EQ(received.count(place), 0U) << c.name << " round " << round;
    }
  }
}

// Carries sets of contributions instead of sums.
TEST(HopSchedule, EveryContributionArrivesOnceAndEveryResultWhereItIsWanted) {
  for (const Case& c : cases()) {
    const HopSchedule& schedule = *c.schedule;
    const int ranks = schedule.ranks();
    const bool reduces = schedule.reduce_rounds() > 0;
    const unsigned everyone = (1U << static_cast<unsigned>(ranks)) - 1;
    std::vector<std::vector<unsigned>> has(ranks, std::vector<unsigned>(schedule.parts()));
    for (int rank = 0; rank < ranks; ++rank) {
      for (int part = 0; part < schedule.parts(); ++part) {
        if (reduces) has[rank][part] = 1U << static_cast<unsigned>(rank);
        if (!reduces && schedule.owner(part) == rank) has[rank][part] = everyone;
      }
    }
    std::set<std::pair<int, int>> sums_sent;
    for (int round = 0; round < schedule.rounds(); ++round) {
      const auto before = has;
      for (const Hop& hop : hops_of_round(schedule, round)) {
        for (int part = hop.first_part; part < hop.end_part; ++part) {
          const unsigned sent = before[hop.source][part];
          if (hop.half == Half::kReduce) {
            ASSERT_TRUE(sums_sent.insert({hop.source, part}).second) << c.name << ": a sum is sent twice";
            ASSERT_EQ(has[hop.destination][part] & sent, 0U) << c.name << ": a contribution is added twice";
            has[hop.destination][part] |= sent;
          } else {
            ASSERT_EQ(sent, everyone) << c.name << ": " << hop.source << " has no result of part " << part << " yet";
            ASSERT_NE(has[hop.destination][part], everyone) << c.name << ": a result is sent to who has it";
            has[hop.destination][part] = sent;
          }
        }
      }
      if (round + 1 != schedule.reduce_rounds()) continue;
      for (int part = 0; part < schedule.parts(); ++part)
        ASSERT_EQ(has[schedule.owner(part)][part], everyone) << c.name;
    }
    if (ranks == 1) continue;
    for (int rank = 0; rank < ranks; ++rank) {
      for (int part = 0; part < schedule.parts(); ++part) {
        if (schedule.collective() == Collective::kReduceScatter && part != rank) continue;
        ASSERT_EQ(has[rank][part], everyone) << c.name << ": rank " << rank << " part " << part;
      }
    }
  }
}

// Hops that each rank's contribution to a part makes, by rank.
std::vector<int> hops_to_owner(const HopSchedule& schedule, int part) {
  std::vector<int> to(static_cast<std::size_t>(schedule.ranks()), -1);
  for (int round = 0; round < schedule.reduce_rounds(); ++round) {
    for (const Hop& hop : hops_of_round(schedule, round)) {
      if (hop.first_part <= part && part < hop.end_part) to[hop.source] = hop.destination;
    }
  }
  std::vector<int> hops(to.size());
  for (std::size_t rank = 0; rank < to.size(); ++rank) {
    for (int at = static_cast<int>(rank); at != schedule.owner(part); at = to[at]) ++hops[rank];
  }
  return hops;
}

TEST(HopSchedule, RingContributionsGoOnceRoundToTheOwner) {
  const auto ring = make_ring_schedule({Collective::kAllReduce, 7});
  for (int part = 0; part < 7; ++part) {
    const std::vector<int> hops = hops_to_owner(*ring, part);
    for (int rank = 0; rank < 7; ++rank) EXPECT_EQ(hops[rank], (part - rank + 7) % 7);
  }
}

TEST(HopSchedule, HalvingTakesAHopForEachBitAndOneMoreToFold) {
  const auto eight = make_halving_doubling_schedule({Collective::kAllReduce, 8});
  for (int part = 0; part < 8; ++part) {
    const std::vector<int> hops = hops_to_owner(*eight, part);
    for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(hops[rank], std::popcount(static_cast<unsigned>(rank ^ part)));
  }
  // Six ranks: 0 and 1, 2 and 3 are pairs, so the active ranks 0, 2, 4, 5 have numbers 0 to 3.
  const auto six = make_halving_doubling_schedule({Collective::kAllReduce, 6});
  EXPECT_EQ(hops_to_owner(*six, 0), (std::vector<int>{0, 1, 1, 2, 1, 2}));
  EXPECT_EQ(hops_to_owner(*six, 3), (std::vector<int>{2, 3, 1, 2, 1, 0}));
  EXPECT_EQ(six->owner(3), 5);
}

// The picture in NCCL's source of trees: parents for 14 ranks.
TEST(HopSchedule, TreeHasNcclsNumbering) {
  const auto tree = make_tree_schedule({Collective::kAllReduce, 14});
  EXPECT_EQ(hops_to_owner(*tree, 0), (std::vector<int>{0, 4, 3, 4, 2, 4, 3, 4, 1, 4, 3, 4, 2, 3}));
}

double mean(const std::vector<int>& values) {
  double sum = 0;
  for (const int v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

// The mean depths of NCCL's trees. If N is even, no rank is an inner rank of both trees.
TEST(HopSchedule, BothTreesHaveNcclsMeanDepthAndComplementEachOther) {
  for (const auto& [ranks, depth] : std::vector<std::pair<int, double>>{{4, 1.25}, {8, 2.125}, {16, 3.0625}}) {
    const auto tree = make_tree_schedule({Collective::kAllReduce, ranks});
    EXPECT_EQ(mean(hops_to_owner(*tree, 0)), depth);
    EXPECT_EQ(mean(hops_to_owner(*tree, 1)), depth);
    std::set<std::pair<int, int>> inner;
    for (int round = 0; round < tree->reduce_rounds(); ++round) {
      for (const Hop& hop : hops_of_round(*tree, round)) inner.insert({hop.destination, hop.first_part});
    }
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(inner.count({rank, 0}) + inner.count({rank, 1}), 1U);
    const auto scatter = make_tree_schedule({Collective::kReduceScatter, ranks});
    for (int part = 0; part < ranks; ++part) EXPECT_EQ(mean(hops_to_owner(*scatter, part)), depth);
  }
}

TEST(HopSchedule, HierarchyTakesAHopWithinAGroupAndARingBetweenThem) {
  const auto schedule = make_hierarchical_schedule({Collective::kAllReduce, 7, 0, 3});  // leaders 0, 3, 6
  EXPECT_EQ(schedule->parts(), 3);
  EXPECT_EQ(hops_to_owner(*schedule, 0), (std::vector<int>{0, 1, 1, 2, 3, 3, 1}));
  EXPECT_EQ(hops_to_owner(*schedule, 2), (std::vector<int>{2, 3, 3, 1, 2, 2, 0}));
  EXPECT_EQ(schedule->rounds(), 6);
  // One group, or groups of one: a star, or a ring.
  EXPECT_EQ(make_hierarchical_schedule({Collective::kAllReduce, 5, 0, 8})->rounds(), 2);
  EXPECT_EQ(make_hierarchical_schedule({Collective::kAllReduce, 5, 0, 1})->rounds(), 8);
}

// Parts beyond the distinct ones travel alike: as many contributions at each distance.
TEST(HopSchedule, DistinctPartsStandForTheOthers) {
  for (const Case& c : cases()) {
    if (c.schedule->reduce_rounds() == 0 || c.schedule->distinct_parts() == c.schedule->parts()) continue;
    ASSERT_EQ(c.schedule->distinct_parts(), 1) << c.name;
    std::vector<int> first = hops_to_owner(*c.schedule, 0);
    std::sort(first.begin(), first.end());
    for (int part = 1; part < c.schedule->parts(); ++part) {
      std::vector<int> other = hops_to_owner(*c.schedule, part);
      std::sort(other.begin(), other.end());
      ASSERT_EQ(first, other) << c.name << " part " << part;
    }
  }
}

TEST(HopSchedule, RefusesWhatHasNoMeaning) {
  EXPECT_THROW(make_ring_schedule({Collective::kAllReduce, 0}), CheckError);
  EXPECT_THROW(make_tree_schedule({Collective::kBroadcast, 4, 4}), CheckError);
  EXPECT_THROW(make_hierarchical_schedule({Collective::kAllReduce, 4, 0, 0}), CheckError);
}

}  // namespace
}  // namespace droptest::sim::hop_schedule_test
