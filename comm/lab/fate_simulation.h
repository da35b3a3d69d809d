// SPDX-License-Identifier: Apache-2.0
// The losses of a collective, without tensors and without ranks: only the fates, for any number of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "comm/lossy/clock/time_model.h"
#include "comm/lossy/network.h"
#include "comm/lossy/paths/path_messages.h"
#include "comm/lossy/statistics/loss_statistics.h"
#include "sim/schedules/hop_schedule.h"

namespace droptest::comm {

/// Collectives of floats one after the other, as one group runs them in a traffic class. The group has the world ranks
/// 0, rank_stride, 2 rank_stride, ...
struct FateSimulation {
  ClassNetwork network;
  sim::TrafficClass traffic_class = sim::TrafficClass::kTpForward;
  int ranks = 8;
  std::uint64_t elements = 65536;  ///< elements of all parts together
  std::uint64_t trials = 1;
  std::uint64_t seed = 1;
  const TimeModel* time = nullptr;          ///< rules of time for processes that depend on time; borrowed; null: none
  std::string_view message_name = "trial";  ///< name of the messages, which may be protected; a trial is a step
  sim::Collective collective = sim::Collective::kAllReduce;
  std::vector<std::uint64_t> counts{};  ///< elements of each rank's part, except in an all-reduce; empty: even parts
  int rank_stride = 1;
  std::vector<int> world_ranks{};  ///< world ranks that replace those of rank_stride; empty: none

  /// The number for every destination stays what it is.
  int world_rank(int rank) const {
    if (rank == sim::Link::kEveryDestination) return rank;
    return world_ranks.empty() ? rank * rank_stride : world_ranks[static_cast<std::size_t>(rank)];
  }
};

/// The elements of each rank's part; even parts if the simulation has no counts.
std::vector<std::uint64_t> counts_of(const FateSimulation& simulation);
/// The shape of its collective; the counts are borrowed.
CallShape shape_of(const FateSimulation& simulation, std::span<const std::uint64_t> counts);

/// Packets of one trial, without those that are sent again. Draws no fates.
std::uint64_t first_packets(const FateSimulation& simulation);

struct SimulatedFates {
  /// Shares by trial, over elements and ranks of an all-reduce: contributions that reach a result, and results that
  /// reach a receiver. All values are 1 for other collectives, and for sums of pairs (top_k).
  std::vector<double> survival_reduce;
  std::vector<double> survival_gather;
  /// Packets, losses and digest of all trials, as LossyCommunicator collects them. Without links and samples.
  ClassStatistics statistics;
};

/// Draws the fates of every link and follows each contribution and each result along the path's hops.
/// Cost: memory for one bit per packet and for ranks x (packets of a result) counts; with a deadline also for each late
/// message of `direct` and `contribution`, and each message of other paths. Determinism: the fates are those of
/// LossyCommunicator bit for bit. A group of one rank loses nothing. Throws: ConfigError for a network that has no
/// meaning, and if the counts would not fit into 8 GiB.
SimulatedFates simulate_fates(const FateSimulation& simulation);

}  // namespace droptest::comm
