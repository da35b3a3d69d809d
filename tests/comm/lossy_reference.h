// SPDX-License-Identifier: Apache-2.0
// A second implementation of collectives under loss, element by element and without ranks: the reference for tests of
// the loss layer.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/network.h"
#include "sim/loss/link.h"
#include "tests/comm/hop_reference.h"

namespace droptest::comm {

/// All ranks of one group of the world ranks 0 to ranks - 1, and one traffic class. Values are indexed [rank][element].
/// It shares with the loss layer only LossProcess::draw(), which it calls for one packet at a time.
class LossyReference {
 public:
  using Values = std::vector<std::vector<double>>;
  using Counts = std::vector<std::uint64_t>;

  LossyReference(const ClassNetwork& network, std::uint64_t seed, sim::TrafficClass traffic_class, int ranks);

  Values all_reduce(const Values& inputs, ReduceOp op);
  Values reduce_scatter(const Values& inputs, const Counts& counts, ReduceOp op);
  /// `before` are the values in the outputs before the call.
  Values all_gather(const Values& inputs, const Counts& counts, const Values& before);
  /// parts[source][destination] -> result[destination], parts in source order.
  Values all_to_all(const std::vector<Values>& parts, const Values& before);
  Values broadcast(int root, const Values& before);

 private:
  enum class Memory : std::uint8_t { kReduce, kReduceScatter, kResult, kGather, kAllToAll, kBroadcast };
  using Lost = std::vector<std::vector<bool>>;  // a flag for each element

  bool contribution() const { return network_.path == "contribution"; }
  bool hops() const { return !contribution() && network_.path != "direct"; }
  std::vector<bool> next_message(sim::Half half, int source, int destination, std::uint64_t elems);
  // The reduced values of [begin, end) that rank `owner` gets. On path contribution, the owner does not matter.
  std::vector<double> reduce(const Values& inputs, std::uint64_t begin, std::uint64_t end, int owner, const Lost& lost,
                             ReduceOp op, Memory memory);
  std::vector<double> own_contribution(const std::vector<double>& input, ReduceOp op) const;
  void fill_gathered(std::vector<double>& received, std::uint64_t begin, std::uint64_t elems, int receiver,
                     const std::vector<bool>& lost, const std::vector<double>& own, Memory memory);

  HopReference hops_;  // for paths that are schedules of hops
  ClassNetwork network_;
  std::uint64_t seed_;
  sim::TrafficClass traffic_class_;
  int ranks_;
  std::map<std::tuple<int, int, int>, std::pair<std::uint64_t, std::uint64_t>> links_;  // next packet, next message
  std::map<std::tuple<Memory, int, int, std::uint64_t>, double> memory_;  // memory, receiver, source, element
};

}  // namespace droptest::comm
