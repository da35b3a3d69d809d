// SPDX-License-Identifier: Apache-2.0
// The hops of each round, with source, destination and parts: a collective algorithm as data. Smallest example:
// ring_schedule.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sim/loss/link.h"

namespace droptest::sim {

/// The collectives that have rounds of hops. An all-to-all and a message are one hop for each pair on every algorithm.
enum class Collective : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast };

/// One message from a rank to another: consecutive parts of the collective's elements.
struct Hop {
  int source = 0;
  int destination = 0;
  Half half = Half::kReduce;  ///< kReduce: the destination adds the source's partial sums; kGather: it takes the values
  int first_part = 0;
  int end_part = 0;  ///< one past the last part

  friend bool operator==(const Hop&, const Hop&) = default;
};

/// The collective of a schedule and its group. Ranks are those of the group, from 0.
struct ScheduleRequest {
  Collective collective = Collective::kAllReduce;
  int ranks = 1;
  int root = 0;         ///< root of a broadcast
  int group_ranks = 0;  ///< consecutive ranks in one group, for algorithms with groups; the last group may be smaller
};

/// The hops of one collective: the only definition of its algorithm. Paths carry the hops out; theory, time and
/// simulations without tensors walk over them.
///
/// The elements are cut into parts(): evenly in an all-reduce, one for each rank in a reduce-scatter and an all-gather,
/// a single one in a broadcast. In a round every rank first sends and then receives; no rank receives a part that it
/// sends in the same round. All reduce hops come before all gather hops, and no rank's partial sum of a part is sent
/// twice. After reduce_rounds() rounds the owner of a part has its sum; an all-gather and a broadcast begin in that
/// state.
/// Determinism: the order of additions is that of the rounds, and within a round that of receives().
class HopSchedule {
 public:
  HopSchedule(const ScheduleRequest& request, int parts);
  virtual ~HopSchedule() = default;

  Collective collective() const { return request_.collective; }
  int ranks() const { return request_.ranks; }
  int parts() const { return parts_; }

  virtual int rounds() const = 0;
  /// Rounds that have reduce hops, if any; they come first.
  virtual int reduce_rounds() const = 0;

  /// Appends the hops that `rank` sends in a round, and those that it receives. The hops from one rank to another are
  /// in the same order in both.
  virtual void sends(int round, int rank, std::vector<Hop>& hops) const = 0;
  virtual void receives(int round, int rank, std::vector<Hop>& hops) const = 0;

  /// All hops of a round, in the order in which ports that carry one message at a time take them: the first hop that
  /// each rank sends, then the second of each, and so on.
  virtual void for_each_hop(int round, const std::function<void(const Hop&)>& visit) const;

  /// The rank at which the reduction of a part ends, or which has its values at the start.
  virtual int owner(int part) const = 0;

  /// Number of first parts that stand for all: each further part travels as one of them does, with ranks renumbered.
  /// Averages over ranks need no other parts if all links are alike.
  virtual int distinct_parts() const { return parts(); }

 protected:
  const ScheduleRequest& request() const { return request_; }

 private:
  ScheduleRequest request_;
  int parts_;
};

/// Number of parts: all_reduce_parts in an all-reduce, one in a broadcast, one for each rank in the other collectives.
int usual_parts(const ScheduleRequest& request, int all_reduce_parts);

/// The algorithms. Throws: CheckError for no ranks, a root that is no rank, or groups of no ranks in an algorithm with
/// groups. ring_schedule.cc, halving_doubling_schedule.cc, ... describe each algorithm and name its source.
std::unique_ptr<HopSchedule> make_direct_schedule(const ScheduleRequest& request);
std::unique_ptr<HopSchedule> make_ring_schedule(const ScheduleRequest& request);
std::unique_ptr<HopSchedule> make_halving_doubling_schedule(const ScheduleRequest& request);
std::unique_ptr<HopSchedule> make_tree_schedule(const ScheduleRequest& request);
std::unique_ptr<HopSchedule> make_hierarchical_schedule(const ScheduleRequest& request);

}  // namespace droptest::sim
