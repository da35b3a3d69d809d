// SPDX-License-Identifier: Apache-2.0
// Binary trees. Nouns: a place is a rank's number in a tree, 0 the root; NCCL's numbering, in which the lowest set bit
// says how high a place is, so that odd places are leaves. An all-reduce has two parts, each half of the elements, with
// a tree each: in the first a rank's place is its number; in the second it is mirrored (even N) or shifted by one (odd
// N), so that most leaves of one are inner ranks of the other and both halves keep every link busy. Sums go up level by
// level and results down. Reduce-scatter and all-gather have a tree for each part, with places counted from the part's
// owner, so a contribution makes as many hops as its place is deep; a broadcast has one, counted from its root.
// Source: Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel
// Computing 35 (2009); numbering: NCCL's double binary trees; trees counted from each owner: NCCL's parallel aggregated
// trees, arXiv 2506.20252.
#include <algorithm>
#include <bit>

#include "sim/schedules/hop_schedule.h"

namespace droptest::sim {
namespace {

class TreeSchedule final : public HopSchedule {
 public:
  explicit TreeSchedule(const ScheduleRequest& request) : HopSchedule(request, usual_parts(request, 2)) {
    const auto n = static_cast<std::size_t>(ranks());
    parents_.assign(n, -1);
    children_.resize(n);
    depths_.assign(n, 0);
    for (int place = 1; place < ranks(); ++place) {
      parents_[place] = parent_of(place);
      children_[parents_[place]].push_back(place);
    }
    for (int place = 1; place < ranks(); ++place) {
      for (int above = place; above != 0; above = parents_[above]) ++depths_[place];
      height_ = std::max(height_, depths_[place]);
    }
  }

  int rounds() const override { return collective() == Collective::kAllReduce ? 2 * height_ : height_; }
  int reduce_rounds() const override {
    return collective() == Collective::kAllReduce || collective() == Collective::kReduceScatter ? height_ : 0;
  }

  void sends(int round, int rank, std::vector<Hop>& hops) const override {
    for (int part = 0; part < parts(); ++part) {
      const int place = place_of(part, rank);
      if (round < reduce_rounds()) {
        if (place != 0 && depths_[place] == level(round)) up(part, place, hops);
      } else if (depths_[place] == level(round)) {
        for (const int child : children_[place]) down(part, child, hops);
      }
    }
  }

  void receives(int round, int rank, std::vector<Hop>& hops) const override {
    for (int part = 0; part < parts(); ++part) {
      const int place = place_of(part, rank);
      if (round < reduce_rounds()) {
        if (depths_[place] + 1 != level(round)) continue;
        for (const int child : children_[place]) up(part, child, hops);
      } else if (place != 0 && depths_[place] == level(round) + 1) {
        down(part, place, hops);
      }
    }
  }

  int owner(int part) const override { return rank_of(part, 0); }
  int distinct_parts() const override { return 1; }

 private:
  // The parent of place > 0: the lowest set bit moves one up; if that is no place, the bit is cleared.
  int parent_of(int place) const {
    const int bit = place & -place;
    const int up = (place ^ bit) | (bit << 1);
    return up < ranks() ? up : place ^ bit;
  }

  // The depth of the ranks that send in a round.
  int level(int round) const { return round < reduce_rounds() ? height_ - round : round - reduce_rounds(); }

  bool mirrored() const { return ranks() % 2 == 0; }
  int root_of(int part) const {
    if (collective() == Collective::kBroadcast) return request().root;
    return part;  // second tree of an all-reduce with odd N: shifted by one
  }
  int place_of(int part, int rank) const {
    if (collective() == Collective::kAllReduce && part == 1 && mirrored()) return ranks() - 1 - rank;
    return (rank - root_of(part) + ranks()) % ranks();
  }
  int rank_of(int part, int place) const {
    if (collective() == Collective::kAllReduce && part == 1 && mirrored()) return ranks() - 1 - place;
    return (place + root_of(part)) % ranks();
  }

  void up(int part, int place, std::vector<Hop>& hops) const {
    hops.push_back({rank_of(part, place), rank_of(part, parents_[place]), Half::kReduce, part, part + 1});
  }
  void down(int part, int place, std::vector<Hop>& hops) const {
    hops.push_back({rank_of(part, parents_[place]), rank_of(part, place), Half::kGather, part, part + 1});
  }

  std::vector<int> parents_;  // parents by place
  std::vector<std::vector<int>> children_;
  std::vector<int> depths_;
  int height_ = 0;
};

}  // namespace

std::unique_ptr<HopSchedule> make_tree_schedule(const ScheduleRequest& request) {
  return std::make_unique<TreeSchedule>(request);
}

}  // namespace droptest::sim
