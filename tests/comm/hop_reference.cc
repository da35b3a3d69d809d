// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/hop_reference.h"

#include <algorithm>

#include "comm/lossy/paths/path_registry.h"

namespace droptest::comm {

HopReference::HopReference(const ClassNetwork& network, std::uint64_t seed, sim::TrafficClass traffic_class, int ranks)
    : network_(network), seed_(seed), traffic_class_(traffic_class), ranks_(ranks) {}

std::vector<bool> HopReference::next_message(const sim::Hop& hop, std::uint64_t elems) {
  const std::uint64_t elems_per_packet = network_.payload_bytes / sizeof(double);
  auto& [next_packet, next_message] = links_[{static_cast<int>(hop.half), hop.source, hop.destination}];
  const auto& loss = hop.half == sim::Half::kReduce ? network_.reduce.loss : network_.gather.loss;
  const sim::Link link{traffic_class_, hop.half, static_cast<std::uint16_t>(hop.source),
                       static_cast<std::uint16_t>(hop.destination)};
  std::vector<bool> lost(elems);
  for (std::uint64_t e = 0; e < elems && loss != nullptr; ++e) {
    const std::uint64_t packet = e / elems_per_packet;
    sim::PacketMask fate(1);
    loss->draw(seed_, link,
               network_.burst_scope == BurstScope::kLink ? next_packet + packet : (next_message << 32) + packet, fate);
    lost[e] = fate.lost(0);
  }
  next_packet += (elems + elems_per_packet - 1) / elems_per_packet;
  ++next_message;
  return lost;
}

HopReference::Values HopReference::run(sim::Collective collective, int root, Values work, const Counts& counts,
                                       ReduceOp op) {
  const auto schedule = path_entry(network_.path).schedule({collective, ranks_, root, network_.group_ranks});
  Counts begins = {0};
  for (const std::uint64_t c : counts) begins.push_back(begins.back() + c);
  std::vector<std::vector<int>> contributions(ranks_, std::vector<int>(begins.back(), 1));
  const double p = network_.reduce.loss == nullptr ? 0 : network_.reduce.loss->loss_rate();
  const Values inputs = work;
  const auto finish_sums = [&] {
    if (schedule->reduce_rounds() == 0) return;
    const bool by_count = network_.reduce.fill == Fill::kCountRescale;
    for (int part = 0; part < schedule->parts(); ++part) {
      const int owner = schedule->owner(part);
      for (std::uint64_t e = begins[part]; e < begins[part + 1]; ++e) {
        if (by_count) work[owner][e] *= static_cast<double>(ranks_) / contributions[owner][e];
        if (op != ReduceOp::kMean) continue;
        for (int rank = 0; rank < ranks_; ++rank) {
          if (rank == owner) {
            work[rank][e] /= ranks_;
          } else if (network_.gather.fill == Fill::kOwn) {
            work[rank][e] = inputs[rank][e];
          }
        }
      }
    }
  };
  for (int round = 0; round < schedule->rounds(); ++round) {
    if (round == schedule->reduce_rounds()) finish_sums();
    const Values sent = work;
    const auto contributions_sent = contributions;
    for (int rank = 0; rank < ranks_; ++rank) {
      std::vector<sim::Hop> hops;
      schedule->receives(round, rank, hops);
      for (const sim::Hop& hop : hops) {
        const std::uint64_t begin = begins[hop.first_part];
        const std::uint64_t elems = begins[hop.end_part] - begin;
        if (elems == 0) continue;
        const std::vector<bool> lost = next_message(hop, elems);
        const bool reduces = hop.half == sim::Half::kReduce;
        for (std::uint64_t e = begin; e < begin + elems; ++e) {
          double x = sent[hop.source][e];
          double& last = last_[{static_cast<int>(collective), static_cast<int>(hop.half), rank,
                                reduces ? hop.source : root, reduces ? round : 0, e}];
          const bool is_lost = lost[e - begin];
          if (!is_lost) last = x;
          double& mine = work[rank][e];
          if (reduces) {
            if (is_lost && network_.reduce.fill != Fill::kStale) continue;
            if (is_lost) x = last;
            if (network_.reduce.fill == Fill::kInverseProbability) x *= 1 / (1 - p);
            mine = op == ReduceOp::kMax ? std::max(mine, x) : mine + x;
            contributions[rank][e] += contributions_sent[hop.source][e];
          } else if (!is_lost) {
            mine = x;
          } else if (network_.gather.fill == Fill::kZero || network_.gather.fill == Fill::kSkip ||
                     network_.gather.fill == Fill::kAbsent) {
            mine = 0;
          } else if (network_.gather.fill == Fill::kStale) {
            mine = last;
          }
        }
      }
    }
  }
  if (schedule->rounds() == schedule->reduce_rounds()) finish_sums();
  return work;
}

}  // namespace droptest::comm
