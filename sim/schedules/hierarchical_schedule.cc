// SPDX-License-Identifier: Apache-2.0
// Two levels: groups of consecutive ranks, the first of each its leader. Members hand their contributions to the leader
// in one round, the leaders run a ring, and the leaders give results to their members in one round. Parts of an
// all-reduce: one for each group, owned by its leader; of a reduce-scatter and an all-gather one for each rank, those
// of a group lie together on the ring. A contribution from a group at distance d of M groups makes d hops between
// groups and one within, unless its rank leads.
// Source: the intra-node and inter-node levels of Horovod's hierarchical all-reduce (Sergeev and Del Balso, arXiv
// 1802.05799), with leaders as in Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005).
#include <algorithm>
#include <string>

#include "sim/error.h"
#include "sim/schedules/hop_schedule.h"

namespace droptest::sim {
namespace {

int groups_of(const ScheduleRequest& request) {
  DROPTEST_CHECK(request.group_ranks >= 1, "groups of " + std::to_string(request.group_ranks) + " ranks");
  return (request.ranks + request.group_ranks - 1) / request.group_ranks;
}

class HierarchicalSchedule final : public HopSchedule {
 public:
  explicit HierarchicalSchedule(const ScheduleRequest& request)
      : HopSchedule(request, usual_parts(request, groups_of(request))),
        group_ranks_(request.group_ranks),
        groups_(groups_of(request)),
        member_rounds_(group_ranks_ > 1 && request.ranks > 1 ? 1 : 0) {}

  int rounds() const override {
    return 2 * member_rounds_ + (collective() == Collective::kAllReduce ? 2 : 1) * (groups_ - 1);
  }
  int reduce_rounds() const override {
    return collective() == Collective::kAllReduce || collective() == Collective::kReduceScatter
               ? member_rounds_ + groups_ - 1
               : 0;
  }

  void sends(int round, int rank, std::vector<Hop>& hops) const override {
    const int leader = leader_of(rank / group_ranks_);
    if (round < member_rounds_) {
      if (rank != leader) to_leader(rank, hops);
    } else if (round >= rounds() - member_rounds_) {
      if (rank != leader) return;
      for (int member = leader + 1; member < leader_of(rank / group_ranks_ + 1); ++member) to_member(member, hops);
    } else if (rank == leader) {
      between_groups(round - member_rounds_, rank / group_ranks_, hops);
    }
  }

  void receives(int round, int rank, std::vector<Hop>& hops) const override {
    const int group = rank / group_ranks_;
    const int leader = leader_of(group);
    if (round < member_rounds_) {
      if (rank != leader) return;
      for (int member = leader + 1; member < leader_of(group + 1); ++member) to_leader(member, hops);
    } else if (round >= rounds() - member_rounds_) {
      if (rank != leader) to_member(rank, hops);
    } else if (rank == leader) {
      between_groups(round - member_rounds_, around(group - 1), hops);
    }
  }

  int owner(int part) const override {
    switch (collective()) {
      case Collective::kAllReduce:
        return leader_of(part);
      case Collective::kReduceScatter:
        return leader_of(part / group_ranks_);
      case Collective::kAllGather:
        return part;
      case Collective::kBroadcast:
        break;
    }
    return request().root;
  }
  int distinct_parts() const override {
    return collective() == Collective::kAllReduce && ranks() % group_ranks_ == 0 ? 1 : parts();
  }

 private:
  // The leader of the group after the last one is the number of ranks.
  int leader_of(int group) const { return std::min(group * group_ranks_, ranks()); }
  int around(int group) const { return (group + groups_) % groups_; }
  // First part of a group.
  int part_of(int group) const { return collective() == Collective::kAllReduce ? group : leader_of(group); }

  void to_leader(int member, std::vector<Hop>& hops) const {
    const int leader = leader_of(member / group_ranks_);
    if (collective() == Collective::kAllGather) {
      hops.push_back({member, leader, Half::kGather, member, member + 1});
    } else if (collective() != Collective::kBroadcast) {
      hops.push_back({member, leader, Half::kReduce, 0, parts()});
    } else if (member == request().root) {
      hops.push_back({member, leader, Half::kGather, 0, 1});
    }
  }

  void to_member(int member, std::vector<Hop>& hops) const {
    const int leader = leader_of(member / group_ranks_);
    switch (collective()) {
      case Collective::kAllReduce:
        return hops.push_back({leader, member, Half::kGather, 0, parts()});
      case Collective::kReduceScatter:
        return hops.push_back({leader, member, Half::kGather, member, member + 1});
      case Collective::kAllGather:
        hops.push_back({leader, member, Half::kGather, 0, member});
        if (member + 1 < parts()) hops.push_back({leader, member, Half::kGather, member + 1, parts()});
        return;
      case Collective::kBroadcast:
        if (member != request().root) hops.push_back({leader, member, Half::kGather, 0, 1});
    }
  }

  // The ring of ring_schedule.cc, with groups for ranks.
  void between_groups(int round, int group, std::vector<Hop>& hops) const {
    const int from = leader_of(group);
    const int to = leader_of(around(group + 1));
    if (collective() == Collective::kBroadcast) {
      if (around(request().root / group_ranks_ + round) == group) hops.push_back({from, to, Half::kGather, 0, 1});
      return;
    }
    const int reduces = reduce_rounds() == 0 ? 0 : groups_ - 1;
    const int sent = around(round < reduces ? group - round - 1 : group - (round - reduces));
    hops.push_back({from, to, round < reduces ? Half::kReduce : Half::kGather, part_of(sent),
                    sent + 1 == groups_ ? parts() : part_of(sent + 1)});
  }

  int group_ranks_;
  int groups_;
  int member_rounds_;
};

}  // namespace

std::unique_ptr<HopSchedule> make_hierarchical_schedule(const ScheduleRequest& request) {
  return std::make_unique<HierarchicalSchedule>(request);
}

}  // namespace droptest::sim
