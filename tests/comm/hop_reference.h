// SPDX-License-Identifier: Apache-2.0
// A second implementation of schedules of hops under loss, element by element and without ranks: the reference for
// tests of HopPath.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/network.h"
#include "sim/schedules/hop_schedule.h"

namespace droptest::comm {

/// All ranks of one group of the world ranks 0 to ranks - 1. It shares with the loss layer only the schedules, which
/// have separate tests, and LossProcess::draw(), which it calls for one packet at a time.
class HopReference {
 public:
  using Values = std::vector<std::vector<double>>;  // [rank][element]
  using Counts = std::vector<std::uint64_t>;

  HopReference(const ClassNetwork& network, std::uint64_t seed, sim::TrafficClass traffic_class, int ranks);

  /// Computes a collective on the elements `work` of each rank, which are cut by `counts`.
  Values run(sim::Collective collective, int root, Values work, const Counts& counts, ReduceOp op);

 private:
  std::vector<bool> next_message(const sim::Hop& hop, std::uint64_t elems);

  ClassNetwork network_;
  std::uint64_t seed_;
  sim::TrafficClass traffic_class_;
  int ranks_;
  std::map<std::tuple<int, int, int>, std::pair<std::uint64_t, std::uint64_t>> links_;  // next packet, next message
  // The last value that arrived. The key is collective, half, receiver, source and round (0 for values), element.
  std::map<std::tuple<int, int, int, int, int, std::uint64_t>, double> last_;
};

}  // namespace droptest::comm
