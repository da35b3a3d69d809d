// SPDX-License-Identifier: Apache-2.0
// Ring: every rank sends to the next one. Part p starts at rank p + 1, gathers a contribution in each of N - 1 hops and
// ends at its owner p. From there the result goes round again in N - 1 hops. A broadcast is a chain from the root.
// Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69 (2009).
#include "sim/schedules/hop_schedule.h"

namespace droptest::sim {
namespace {

class RingSchedule final : public HopSchedule {
 public:
  explicit RingSchedule(const ScheduleRequest& request) : HopSchedule(request, usual_parts(request, request.ranks)) {}

  int rounds() const override { return collective() == Collective::kAllReduce ? 2 * (ranks() - 1) : ranks() - 1; }
  int reduce_rounds() const override {
    return collective() == Collective::kAllReduce || collective() == Collective::kReduceScatter ? ranks() - 1 : 0;
  }

  void sends(int round, int rank, std::vector<Hop>& hops) const override {
    const int next = around(rank + 1);
    if (collective() == Collective::kBroadcast) {
      if (around(request().root + round) == rank) hops.push_back({rank, next, Half::kGather, 0, 1});
    } else if (round < reduce_rounds()) {
      const int part = around(rank - round - 1);
      hops.push_back({rank, next, Half::kReduce, part, part + 1});
    } else {
      const int part = around(rank - (round - reduce_rounds()));
      hops.push_back({rank, next, Half::kGather, part, part + 1});
    }
  }

  void receives(int round, int rank, std::vector<Hop>& hops) const override { sends(round, around(rank - 1), hops); }

  int owner(int part) const override { return collective() == Collective::kBroadcast ? request().root : part; }
  int distinct_parts() const override { return 1; }

 private:
  // At least -ranks: a round is smaller than that.
  int around(int rank) const { return (rank + ranks()) % ranks(); }
};

}  // namespace

std::unique_ptr<HopSchedule> make_ring_schedule(const ScheduleRequest& request) {
  return std::make_unique<RingSchedule>(request);
}

}  // namespace droptest::sim
