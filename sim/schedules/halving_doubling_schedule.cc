// SPDX-License-Identifier: Apache-2.0
// Recursive halving and doubling. Nouns: N = A + F ranks; A is the largest power of two up to N. The F extra ranks
// fold: each odd one of the first 2 F ranks hands everything to the even one before it and gets results back at the
// end. The A active ranks, numbered 0 to A - 1 in rank order, halve: at distance A/2, A/4, ..., 1 each sends its
// partner (own number xor distance) the half of its block that lies on the partner's side. The owner of a block of one
// is the active rank of that number; doubling goes the same way back. A contribution makes as many hops as its active
// number differs in bits from the owner's, and one more if it folds. A broadcast is a binomial tree of the ranks
// counted from the root: farthest first, one hop for each set bit. Source: Thakur, Rabenseifner and Gropp, Optimization
// of collective communication operations in MPICH, IJHPCA 19 (2005), sections 4.3 to 4.5.
#include <bit>

#include "sim/schedules/hop_schedule.h"

namespace droptest::sim {
namespace {

class HalvingDoublingSchedule final : public HopSchedule {
 public:
  explicit HalvingDoublingSchedule(const ScheduleRequest& request)
      : HopSchedule(request, usual_parts(request, floor_power(request.ranks))),
        active_(floor_power(request.ranks)),
        folded_(request.ranks - active_),
        levels_(std::countr_zero(static_cast<unsigned>(active_))),
        fold_rounds_(folded_ > 0 ? 1 : 0) {}

  int rounds() const override {
    switch (collective()) {
      case Collective::kAllReduce:
        return 2 * (levels_ + fold_rounds_);
      case Collective::kReduceScatter:
      case Collective::kAllGather:
        return levels_ + 2 * fold_rounds_;
      case Collective::kBroadcast:
        break;
    }
    return levels_ + fold_rounds_;  // ceil(log2 N)
  }
  int reduce_rounds() const override {
    return collective() == Collective::kAllReduce || collective() == Collective::kReduceScatter ? fold_rounds_ + levels_
                                                                                                : 0;
  }

  void sends(int round, int rank, std::vector<Hop>& hops) const override {
    if (collective() == Collective::kBroadcast) return broadcast_sends(round, rank, hops);
    const bool pairs = rank < 2 * folded_;
    if (round < fold_rounds_) {
      if (pairs && rank % 2 == 1) fold(rank, hops);
    } else if (round >= rounds() - fold_rounds_ && has_unfold()) {
      if (pairs && rank % 2 == 0) unfold(rank, hops);
    } else if (is_active(rank)) {
      exchange(round, number_of(rank), hops);
    }
  }

  void receives(int round, int rank, std::vector<Hop>& hops) const override {
    if (collective() == Collective::kBroadcast) return broadcast_receives(round, rank, hops);
    const bool pairs = rank < 2 * folded_;
    if (round < fold_rounds_) {
      if (pairs && rank % 2 == 0) fold(rank + 1, hops);
    } else if (round >= rounds() - fold_rounds_ && has_unfold()) {
      if (pairs && rank % 2 == 1) unfold(rank - 1, hops);
    } else if (is_active(rank)) {
      exchange(round, number_of(rank) ^ distance(round), hops);
    }
  }

  int owner(int part) const override {
    switch (collective()) {
      case Collective::kAllReduce:
        return rank_of(part);
      case Collective::kReduceScatter:
        return is_active(part) ? part : part - 1;
      case Collective::kAllGather:
        return part;
      case Collective::kBroadcast:
        break;
    }
    return request().root;
  }
  int distinct_parts() const override { return folded_ == 0 ? 1 : parts(); }

 private:
  static int floor_power(int ranks) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks))); }

  bool has_unfold() const { return fold_rounds_ > 0; }
  bool is_active(int rank) const { return rank >= 2 * folded_ || rank % 2 == 0; }
  int number_of(int rank) const { return rank < 2 * folded_ ? rank / 2 : rank - folded_; }
  int rank_of(int number) const { return number < folded_ ? 2 * number : number + folded_; }
  // First part of an active number: one part each in an all-reduce, else one for each rank it stands for.
  int part_of(int number) const { return collective() == Collective::kAllReduce ? number : rank_of(number); }

  int distance(int round) const {
    const int level = round - fold_rounds_;
    return level < reduce_levels() ? active_ >> (level + 1) : 1 << (level - reduce_levels());
  }
  int reduce_levels() const { return collective() == Collective::kAllGather ? 0 : levels_; }

  void exchange(int round, int number, std::vector<Hop>& hops) const {
    const int d = distance(round);
    const int partner = number ^ d;
    const bool halving = round - fold_rounds_ < reduce_levels();
    const int first = (halving ? partner : number) & ~(d - 1);
    hops.push_back({rank_of(number), rank_of(partner), halving ? Half::kReduce : Half::kGather, part_of(first),
                    first + d == active_ ? parts() : part_of(first + d)});
  }

  // The hop from odd `rank` to the active rank before it.
  void fold(int rank, std::vector<Hop>& hops) const {
    if (collective() == Collective::kAllGather) {
      hops.push_back({rank, rank - 1, Half::kGather, rank, rank + 1});
    } else {
      hops.push_back({rank, rank - 1, Half::kReduce, 0, parts()});
    }
  }

  // The hop of results from active `rank` back to the odd rank behind it.
  void unfold(int rank, std::vector<Hop>& hops) const {
    const int to = rank + 1;
    if (collective() == Collective::kReduceScatter) {
      hops.push_back({rank, to, Half::kGather, to, to + 1});
    } else if (collective() == Collective::kAllReduce) {
      hops.push_back({rank, to, Half::kGather, 0, parts()});
    } else {
      hops.push_back({rank, to, Half::kGather, 0, to});
      if (to + 1 < parts()) hops.push_back({rank, to, Half::kGather, to + 1, parts()});
    }
  }

  int from_root(int rank) const { return (rank - request().root + ranks()) % ranks(); }
  int reach(int round) const { return 1 << (rounds() - 1 - round); }
  void broadcast_sends(int round, int rank, std::vector<Hop>& hops) const {
    const int place = from_root(rank);
    if (place % (2 * reach(round)) != 0 || place + reach(round) >= ranks()) return;
    hops.push_back({rank, (rank + reach(round)) % ranks(), Half::kGather, 0, 1});
  }
  void broadcast_receives(int round, int rank, std::vector<Hop>& hops) const {
    const int place = from_root(rank);
    if (place % (2 * reach(round)) != reach(round)) return;
    hops.push_back({(rank - reach(round) + ranks()) % ranks(), rank, Half::kGather, 0, 1});
  }

  int active_;
  int folded_;
  int levels_;
  int fold_rounds_;
};

}  // namespace

std::unique_ptr<HopSchedule> make_halving_doubling_schedule(const ScheduleRequest& request) {
  return std::make_unique<HalvingDoublingSchedule>(request);
}

}  // namespace droptest::sim
