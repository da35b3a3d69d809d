// SPDX-License-Identifier: Apache-2.0
// Direct exchange: in one round every rank sends each part to its owner, and in another each owner sends its result to
// all. A broadcast is one round from the root to all.
// Source: transpose all-reduce of OptiReduce, NSDI 2025.
#include "sim/schedules/hop_schedule.h"

namespace droptest::sim {
namespace {

class DirectSchedule final : public HopSchedule {
 public:
  explicit DirectSchedule(const ScheduleRequest& request) : HopSchedule(request, usual_parts(request, request.ranks)) {}

  int rounds() const override {
    if (ranks() == 1) return 0;
    return collective() == Collective::kAllReduce ? 2 : 1;
  }
  int reduce_rounds() const override {
    if (ranks() == 1) return 0;
    return collective() == Collective::kAllReduce || collective() == Collective::kReduceScatter ? 1 : 0;
  }

  void sends(int round, int rank, std::vector<Hop>& hops) const override {
    for (int peer = 0; peer < ranks(); ++peer) add(round, rank, peer, hops);
  }
  void receives(int round, int rank, std::vector<Hop>& hops) const override {
    for (int peer = 0; peer < ranks(); ++peer) add(round, peer, rank, hops);
  }

  // Visits the hops from each rank to each other one, nearest first, so that no two meet at a port.
  void for_each_hop(int round, const std::function<void(const Hop&)>& visit) const override {
    std::vector<Hop> hop;
    for (int distance = 1; distance < ranks(); ++distance) {
      for (int source = 0; source < ranks(); ++source) {
        hop.clear();
        add(round, source, (source + distance) % ranks(), hop);
        if (!hop.empty()) visit(hop.front());
      }
    }
  }

  int owner(int part) const override { return collective() == Collective::kBroadcast ? request().root : part; }
  int distinct_parts() const override { return 1; }

 private:
  void add(int round, int source, int destination, std::vector<Hop>& hops) const {
    if (source == destination) return;
    if (round < reduce_rounds()) {
      hops.push_back({source, destination, Half::kReduce, destination, destination + 1});
    } else if (collective() != Collective::kBroadcast) {
      hops.push_back({source, destination, Half::kGather, source, source + 1});
    } else if (source == request().root) {
      hops.push_back({source, destination, Half::kGather, 0, 1});
    }
  }
};

}  // namespace

std::unique_ptr<HopSchedule> make_direct_schedule(const ScheduleRequest& request) {
  return std::make_unique<DirectSchedule>(request);
}

}  // namespace droptest::sim
