// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/lossy_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/lossy/paths/path_registry.h"

namespace droptest::comm {
namespace {

constexpr int kAll = sim::Link::kEveryDestination;

std::vector<std::uint64_t> begins(const std::vector<std::uint64_t>& counts) {
  std::vector<std::uint64_t> result = {0};
  for (const std::uint64_t c : counts) result.push_back(result.back() + c);
  return result;
}

}  // namespace

LossyReference::LossyReference(const ClassNetwork& network, std::uint64_t seed, sim::TrafficClass traffic_class,
                               int ranks)
    : hops_(network, seed, traffic_class, ranks),
      network_(network),
      seed_(seed),
      traffic_class_(traffic_class),
      ranks_(ranks) {}

std::vector<bool> LossyReference::next_message(sim::Half half, int source, int destination, std::uint64_t elems) {
  const std::uint64_t elems_per_packet = network_.payload_bytes / sizeof(double);
  const std::uint64_t packets = (elems + elems_per_packet - 1) / elems_per_packet;
  auto& [next_packet, next_message] = links_[{static_cast<int>(half), source, destination}];
  const auto& loss = half == sim::Half::kReduce ? network_.reduce.loss : network_.gather.loss;
  const sim::Link link{traffic_class_, half, static_cast<std::uint16_t>(source),
                       static_cast<std::uint16_t>(destination)};
  std::vector<bool> lost(elems);
  for (std::uint64_t e = 0; e < elems && loss != nullptr; ++e) {
    const std::uint64_t packet = e / elems_per_packet;
    sim::PacketMask fate(1);
    loss->draw(seed_, link,
               network_.burst_scope == BurstScope::kLink ? next_packet + packet : (next_message << 32) + packet, fate);
    lost[e] = fate.lost(0);
  }
  next_packet += packets;
  ++next_message;
  return lost;
}

std::vector<double> LossyReference::reduce(const Values& inputs, std::uint64_t begin, std::uint64_t end, int owner,
                                           const Lost& lost, ReduceOp op, Memory memory) {
  const Fill fill = network_.reduce.fill;
  const double p = network_.reduce.loss == nullptr ? 0 : network_.reduce.loss->loss_rate();
  std::vector<double> result;
  for (std::uint64_t e = begin; e < end; ++e) {
    double value = op == ReduceOp::kMax ? -std::numeric_limits<double>::infinity() : 0;
    int arrived = 0;
    for (int s = 0; s < ranks_; ++s) {
      const bool is_lost = lost[s][e - begin];
      double x = inputs[s][e];
      double& last = memory_[{memory, contribution() ? -1 : owner, s, e}];
      if (!is_lost) last = x;
      if (is_lost && fill == Fill::kStale) x = last;
      if (is_lost && fill == Fill::kOwn) x = inputs[owner][e];
      if (is_lost && fill != Fill::kStale && fill != Fill::kOwn) continue;
      ++arrived;
      if (fill == Fill::kInverseProbability && (contribution() || s != owner)) x *= 1 / (1 - p);
      value = op == ReduceOp::kMax ? std::max(value, x) : value + x;
    }
    if (arrived == 0) value = 0;
    if (op == ReduceOp::kMean) value /= ranks_;
    if (fill == Fill::kCountRescale && arrived > 0) value *= static_cast<double>(ranks_) / arrived;
    result.push_back(value);
  }
  return result;
}

void LossyReference::fill_gathered(std::vector<double>& received, std::uint64_t begin, std::uint64_t elems,
                                   int receiver, const std::vector<bool>& lost, const std::vector<double>& own,
                                   Memory memory) {
  for (std::uint64_t e = 0; e < elems; ++e) {
    double& value = received[begin + e];
    double& last = memory_[{memory, receiver, -1, begin + e}];
    if (!lost[e]) {
      last = value;
    } else if (network_.gather.fill == Fill::kZero || network_.gather.fill == Fill::kSkip ||
               network_.gather.fill == Fill::kAbsent) {
      value = 0;
    } else if (network_.gather.fill == Fill::kStale) {
      value = last;
    } else {
      value = own[begin + e];
    }
  }
}

std::vector<double> LossyReference::own_contribution(const std::vector<double>& input, ReduceOp op) const {
  std::vector<double> own = input;
  if (network_.gather.fill == Fill::kOwnScaled && op != ReduceOp::kMax) {
    const double exponent = op == ReduceOp::kSum ? 0.5 : -0.5;
    for (double& x : own) x *= std::pow(ranks_, exponent);
  }
  return own;
}

LossyReference::Values LossyReference::all_reduce(const Values& inputs, ReduceOp op) {
  const std::uint64_t n = inputs[0].size();
  if (hops()) {
    const auto schedule =
        path_entry(network_.path).schedule({sim::Collective::kAllReduce, ranks_, 0, network_.group_ranks});
    return hops_.run(sim::Collective::kAllReduce, 0, inputs, even_counts(n, schedule->parts()), op);
  }
  Values outputs(ranks_);
  if (contribution()) {
    Lost lost;
    for (int s = 0; s < ranks_; ++s) lost.push_back(next_message(sim::Half::kReduce, s, kAll, n));
    const std::vector<double> sum = reduce(inputs, 0, n, 0, lost, op, Memory::kReduce);
    for (int r = 0; r < ranks_; ++r) outputs[r] = sum;
    if (network_.gather.loss == nullptr) return outputs;
    std::vector<bool> result_lost;
    for (int r = 0; r < ranks_; ++r) {
      if (network_.consistency == Consistency::kPerReceiver) {
        result_lost = next_message(sim::Half::kGather, 0, r, n);
      } else if (r == 0) {
        result_lost = next_message(sim::Half::kGather, 0, kAll, n);
      }
      fill_gathered(outputs[r], 0, n, r, result_lost, own_contribution(inputs[r], op), Memory::kResult);
    }
    return outputs;
  }
  Counts counts(ranks_);
  for (std::uint64_t e = 0; e < n; ++e) ++counts[e % static_cast<std::uint64_t>(ranks_)];
  const auto begin = begins(counts);
  Values parts(ranks_);
  for (int o = 0; o < ranks_; ++o) {
    Lost lost;
    for (int s = 0; s < ranks_; ++s) {
      lost.push_back(s == o ? std::vector<bool>(counts[o]) : next_message(sim::Half::kReduce, s, o, counts[o]));
    }
    parts[o] = reduce(inputs, begin[o], begin[o + 1], o, lost, op, Memory::kReduce);
  }
  for (int r = 0; r < ranks_; ++r) outputs[r].resize(n);
  for (int o = 0; o < ranks_; ++o) {
    std::vector<bool> lost;
    if (network_.consistency == Consistency::kShared) lost = next_message(sim::Half::kGather, o, kAll, counts[o]);
    for (int r = 0; r < ranks_; ++r) {
      std::copy(parts[o].begin(), parts[o].end(), outputs[r].begin() + static_cast<std::ptrdiff_t>(begin[o]));
      const bool mine =
          r == o && (network_.consistency == Consistency::kPerReceiver || network_.gather.rule().keeps_own());
      std::vector<bool> here = lost;
      if (network_.consistency == Consistency::kPerReceiver && r != o) {
        here = next_message(sim::Half::kGather, o, r, counts[o]);
      }
      if (mine) here.assign(counts[o], false);
      fill_gathered(outputs[r], begin[o], counts[o], r, here, own_contribution(inputs[r], op), Memory::kResult);
    }
  }
  return outputs;
}

LossyReference::Values LossyReference::reduce_scatter(const Values& inputs, const Counts& counts, ReduceOp op) {
  const auto begin = begins(counts);
  Values outputs(ranks_);
  if (hops()) {
    const Values work = hops_.run(sim::Collective::kReduceScatter, 0, inputs, counts, op);
    for (int r = 0; r < ranks_; ++r) {
      const auto first = work[r].begin() + static_cast<std::ptrdiff_t>(begin[r]);
      outputs[r].assign(first, first + static_cast<std::ptrdiff_t>(counts[r]));
    }
    return outputs;
  }
  Lost whole;
  for (int s = 0; s < ranks_ && contribution(); ++s) {
    whole.push_back(next_message(sim::Half::kReduce, s, kAll, inputs[0].size()));
  }
  for (int o = 0; o < ranks_; ++o) {
    Lost lost;
    for (int s = 0; s < ranks_; ++s) {
      if (contribution()) {
        const auto first = whole[s].begin() + static_cast<std::ptrdiff_t>(begin[o]);
        lost.emplace_back(first, first + static_cast<std::ptrdiff_t>(counts[o]));
      } else {
        lost.push_back(s == o ? std::vector<bool>(counts[o]) : next_message(sim::Half::kReduce, s, o, counts[o]));
      }
    }
    outputs[o] = reduce(inputs, begin[o], begin[o + 1], o, lost, op, Memory::kReduceScatter);
  }
  return outputs;
}

LossyReference::Values LossyReference::all_gather(const Values& inputs, const Counts& counts, const Values& before) {
  const auto begin = begins(counts);
  if (hops()) {
    Values work = before;
    for (int r = 0; r < ranks_; ++r) {
      std::copy(inputs[r].begin(), inputs[r].end(), work[r].begin() + static_cast<std::ptrdiff_t>(begin[r]));
    }
    return hops_.run(sim::Collective::kAllGather, 0, work, counts, ReduceOp::kSum);
  }
  const bool shared = contribution() || network_.consistency == Consistency::kShared;
  Values outputs(ranks_);
  for (int r = 0; r < ranks_; ++r) outputs[r].resize(begin.back());
  for (int o = 0; o < ranks_; ++o) {
    std::vector<bool> lost;
    if (shared) lost = next_message(sim::Half::kGather, o, kAll, counts[o]);
    for (int r = 0; r < ranks_; ++r) {
      std::copy(inputs[o].begin(), inputs[o].end(), outputs[r].begin() + static_cast<std::ptrdiff_t>(begin[o]));
      std::vector<bool> here = lost;
      if (!shared && r != o) here = next_message(sim::Half::kGather, o, r, counts[o]);
      if (r == o && (!shared || network_.gather.rule().keeps_own())) here.assign(counts[o], false);
      fill_gathered(outputs[r], begin[o], counts[o], r, here, before[r], Memory::kGather);
    }
  }
  return outputs;
}

LossyReference::Values LossyReference::all_to_all(const std::vector<Values>& parts, const Values& before) {
  Values outputs(ranks_);
  for (int d = 0; d < ranks_; ++d) {
    for (int s = 0; s < ranks_; ++s) {
      const std::uint64_t begin = outputs[d].size();
      const std::vector<double>& part = parts[s][d];
      outputs[d].insert(outputs[d].end(), part.begin(), part.end());
      if (s == d) continue;
      fill_gathered(outputs[d], begin, part.size(), d, next_message(sim::Half::kGather, s, d, part.size()), before[d],
                    Memory::kAllToAll);
    }
  }
  return outputs;
}

LossyReference::Values LossyReference::broadcast(int root, const Values& before) {
  if (hops()) return hops_.run(sim::Collective::kBroadcast, root, before, {before[root].size()}, ReduceOp::kSum);
  const bool shared = contribution() || network_.consistency == Consistency::kShared;
  const std::uint64_t n = before[root].size();
  Values outputs(ranks_, before[root]);
  std::vector<bool> lost;
  if (shared) lost = next_message(sim::Half::kGather, root, kAll, n);
  for (int r = 0; r < ranks_; ++r) {
    std::vector<bool> here = lost;
    if (!shared && r != root) here = next_message(sim::Half::kGather, root, r, n);
    if (r == root && (!shared || network_.gather.rule().keeps_own())) here.assign(n, false);
    fill_gathered(outputs[r], 0, n, r, here, before[r], Memory::kBroadcast);
  }
  return outputs;
}

}  // namespace droptest::comm
