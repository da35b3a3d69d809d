// SPDX-License-Identifier: Apache-2.0
// Attention over several ranks under loss equals dense attention with the elements that arrived.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "models/attention/sequence_attention.h"
#include "sim/loss/bernoulli.h"
#include "tests/models/attention/sequence_cases.h"

namespace droptest::models::sequence_loss_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

comm::LossyOptions lossy_options(double rate, comm::Fill fill) {
  comm::ClassNetwork network;
  network.payload_bytes = 40;
  network.gather.loss = std::make_shared<sim::Bernoulli>(rate);
  network.gather.fill = fill;
  comm::LossyOptions options;
  options.network.seed = 7;
  options.network.of(sim::TrafficClass::kSequenceForward) = network;
  return options;
}

// The elements that four ranks send in a forward pass and in a backward pass, from even parts.
std::pair<std::uint64_t, std::uint64_t> sent_elems(const SequenceFactors& factors, const Whole& whole) {
  std::map<sim::TrafficClass, std::uint64_t> bytes;
  comm::run_ranks(4, kTimeout, [&](comm::Communicator& inner) {
    comm::LossyOptions options = lossy_options(0, comm::Fill::kZero);
    options.network.of(sim::TrafficClass::kSequenceBackward) = options.network.of(sim::TrafficClass::kSequenceForward);
    comm::LossyCommunicator group(inner, options);
    SequenceAttention<double> attention(&group, factors, whole.shape.heads);
    const SequenceParts parts = SequenceParts::even(whole.shape.tokens, 4);
    run_part(attention, parts, group.rank(), whole, whole.mask.mask(), TokenLayout::kBatchFirst);
    const auto statistics = group.collect_statistics(comm::LinkDetail::kOmit);
    if (group.rank() != 0) return;
    for (const auto& of_class : statistics) bytes[of_class.traffic_class] = of_class.total().bytes;
  });
  return {bytes[sim::TrafficClass::kSequenceForward] / sizeof(double),
          bytes[sim::TrafficClass::kSequenceBackward] / sizeof(double)};
}

TEST(SequenceAttention, UlyssesSendsPartsOfFourTensorsEachWay) {
  const Whole whole({3, 16, 8, kWidth}, {MaskKind::kCausal});
  const std::uint64_t elems = 4 * whole.shape.elems() * 3 / 4;
  EXPECT_EQ(sent_elems({4, 1}, whole), std::pair(elems, elems));
}

TEST(SequenceAttention, ARingSendsKeysAndValuesForwardAndTheirGradientsTooBackward) {
  const Whole whole({3, 16, 8, kWidth}, {MaskKind::kCausal});
  EXPECT_EQ(sent_elems({1, 4}, whole), std::pair(3 * 2 * whole.shape.elems(), 3 * 4 * whole.shape.elems()));
}

/// The elements that each rank received in a lossy forward pass, found by sending ones over the same network: the rank
/// computed with the elementwise product of a tensor and `arrived`.
struct Received {
  std::vector<WholeTensor> queries;  ///< queries of each rank
  std::vector<WholeTensor> keys;
  std::vector<WholeTensor> values;
  std::vector<WholeTensor> outputs;  ///< outputs after their return to the rank of the tokens
};

Received probe(int ranks, const SequenceFactors& factors, const SequenceParts& parts, const HeadShape& shape,
               double rate) {
  Received received;
  const WholeTensor zeros(shape);
  received.queries.assign(static_cast<std::size_t>(ranks), zeros);
  received.keys = received.values = received.outputs = received.queries;
  comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& inner) {
    comm::LossyCommunicator group(inner, lossy_options(rate, comm::Fill::kZero));
    const auto me = static_cast<std::size_t>(group.rank());
    const auto u = factors.ulysses;
    const int r = group.rank() / u;
    std::unique_ptr<comm::Communicator> exchange = u > 1 ? group.split(r, group.rank()) : nullptr;
    std::unique_ptr<comm::Communicator> ring = factors.ring > 1 ? group.split(group.rank() % u, group.rank()) : nullptr;
    const auto heads = comm::even_counts(static_cast<std::uint64_t>(shape.heads), u);
    const auto slot = static_cast<std::size_t>(group.rank() % u);
    const std::int64_t first_head = [&] {
      std::int64_t first = 0;
      for (std::size_t i = 0; i < slot; ++i) first += static_cast<std::int64_t>(heads[i]);
      return first;
    }();
    const auto my_heads = static_cast<std::int64_t>(heads[slot]);
    const auto put = [&](WholeTensor& whole, const Doubles& elems, const std::vector<std::int64_t>& positions,
                         std::int64_t head, std::int64_t count) {
      auto element = elems.begin();
      for (const std::int64_t t : positions) {
        for (std::int64_t b = 0; b < shape.batch; ++b) {
          for (std::int64_t h = head; h < head + count; ++h) {
            for (std::int64_t d = 0; d < shape.width; ++d) whole.at(b, t, h, d) = *element++;
          }
        }
      }
    };
    const auto elems_of = [&](std::int64_t tokens, std::uint64_t of_heads) {
      return HeadShape{shape.batch, tokens, static_cast<std::int64_t>(of_heads), shape.width}.elems();
    };
    std::vector<std::uint64_t> by_heads;
    std::vector<std::uint64_t> by_tokens;
    for (int i = 0; i < u; ++i) {
      by_heads.push_back(elems_of(parts.length_of(group.rank()), heads[static_cast<std::size_t>(i)]));
      by_tokens.push_back(elems_of(parts.length_of(r * u + i), heads[slot]));
    }
    const auto all_to_all = [&](const std::vector<std::uint64_t>& send, const std::vector<std::uint64_t>& receive) {
      std::uint64_t sent = 0;
      std::uint64_t got = 0;
      for (const std::uint64_t count : send) sent += count;
      for (const std::uint64_t count : receive) got += count;
      Doubles result(got, 1);
      const Doubles ones(sent, 1);
      if (exchange) {
        exchange->all_to_all(std::span<const double>(ones), send, std::span(result), receive,
                             {sim::TrafficClass::kSequenceForward, "probe"});
      }
      return result;
    };
    const std::vector<std::int64_t> gathered = parts.positions(r * u, u);
    put(received.queries[me], all_to_all(by_heads, by_tokens), gathered, first_head, my_heads);
    Doubles keys = all_to_all(by_heads, by_tokens);
    Doubles values = all_to_all(by_heads, by_tokens);
    put(received.keys[me], keys, gathered, first_head, my_heads);
    put(received.values[me], values, gathered, first_head, my_heads);
    for (int hop = 1; hop < factors.ring; ++hop) {
      const int part = (r + factors.ring - hop) % factors.ring;
      const std::vector<std::int64_t> positions = parts.positions(part * u, u);
      Doubles next_keys(elems_of(static_cast<std::int64_t>(positions.size()), heads[slot]));
      Doubles next_values(next_keys.size());
      const int to = (r + 1) % factors.ring;
      const int from = (r + factors.ring - 1) % factors.ring;
      const comm::Message k{sim::TrafficClass::kSequenceForward, "probe keys"};
      const comm::Message v{sim::TrafficClass::kSequenceForward, "probe values"};
      const std::vector<comm::Send> sends = {{std::span<const double>(keys), to, k},
                                             {std::span<const double>(values), to, v}};
      const std::vector<comm::Receive> receives = {{std::span(next_keys), from, k}, {std::span(next_values), from, v}};
      ring->exchange(sends, receives);
      keys = next_keys;
      values = next_values;
      put(received.keys[me], keys, positions, first_head, my_heads);
      put(received.values[me], values, positions, first_head, my_heads);
    }
    const Doubles outputs = all_to_all(by_tokens, by_heads);
    std::int64_t head = 0;
    auto begin = outputs.begin();
    for (int i = 0; i < u; ++i) {
      const auto size = static_cast<std::ptrdiff_t>(by_heads[static_cast<std::size_t>(i)]);
      put(received.outputs[me], Doubles(begin, begin + size), parts.positions(group.rank(), 1), head,
          static_cast<std::int64_t>(heads[static_cast<std::size_t>(i)]));
      begin += size;
      head += static_cast<std::int64_t>(heads[static_cast<std::size_t>(i)]);
    }
  });
  return received;
}

WholeTensor times(const WholeTensor& a, const WholeTensor& b) {
  WholeTensor product = a;
  for (std::size_t i = 0; i < a.elems.size(); ++i) product.elems[i] *= b.elems[i];
  return product;
}

void add_to(WholeTensor& sum, const WholeTensor& a) {
  for (std::size_t i = 0; i < sum.elems.size(); ++i) sum.elems[i] += a.elems[i];
}

/// Dense attention of each rank's queries and heads with the elements that the rank received.
DenseAttention dense_under_loss(const Whole& whole, const Received& received, const SequenceParts& parts,
                                const SequenceFactors& factors, comm::Fill fill) {
  const HeadShape& shape = whole.shape;
  const int u = factors.ulysses;
  const auto heads = comm::even_counts(static_cast<std::uint64_t>(shape.heads), u);
  DenseAttention sum{WholeTensor(shape), {}, WholeTensor(shape), WholeTensor(shape), WholeTensor(shape)};
  WholeTensor returned(shape);
  for (const WholeTensor& of_rank : received.outputs) add_to(returned, of_rank);
  const WholeTensor dout = times(whole.dout, returned);
  for (int rank = 0; rank < u * factors.ring; ++rank) {
    const auto me = static_cast<std::size_t>(rank);
    std::vector<bool> has_query(static_cast<std::size_t>(shape.tokens));
    for (const std::int64_t t : parts.positions(rank / u * u, u)) has_query[static_cast<std::size_t>(t)] = true;
    std::int64_t first_head = 0;
    for (int i = 0; i < rank % u; ++i) first_head += static_cast<std::int64_t>(heads[static_cast<std::size_t>(i)]);
    const auto end_head = first_head + static_cast<std::int64_t>(heads[static_cast<std::size_t>(rank % u)]);
    const auto arrived = [&](const WholeTensor& ones, std::int64_t b, std::int64_t k, std::int64_t h) {
      for (std::int64_t d = 0; d < shape.width; ++d) {
        if (ones.at(b, k, h, d) == 0) return false;
      }
      return true;
    };
    const ScoreBias bias = [&](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) {
      if (h < first_head || h >= end_head || !has_query[static_cast<std::size_t>(q)]) return -kInfinity;
      const bool is_there = arrived(received.keys[me], b, k, h) && arrived(received.values[me], b, k, h);
      if (fill == comm::Fill::kAbsent && !is_there) return -kInfinity;
      return whole.mask.bias(b, q, k);
    };
    const DenseAttention of_rank =
        dense_attention(times(whole.q, received.queries[me]), times(whole.k, received.keys[me]),
                        times(whole.v, received.values[me]), bias, dout);
    add_to(sum.output, of_rank.output);
    add_to(sum.grad_queries, times(of_rank.grad_queries, received.queries[me]));
    add_to(sum.grad_keys, times(of_rank.grad_keys, received.keys[me]));
    add_to(sum.grad_values, times(of_rank.grad_values, received.values[me]));
  }
  return sum;
}

TEST(SequenceAttention, UnderLossEqualsDenseAttentionOfWhatEachRankReceived) {
  const HeadShape shape{2, 13, 6, kWidth};
  const Whole whole(shape, {MaskKind::kCausal});
  for (const comm::Fill fill : {comm::Fill::kAbsent, comm::Fill::kZero}) {
    for (const double rate : {0.05, 0.2, 1.0}) {
      for (int ranks = 2; ranks <= 4; ++ranks) {
        for (const SequenceFactors& factors : factors_of(ranks)) {
          for (const SequenceParts& parts :
               {SequenceParts::even(13, ranks), SequenceParts::zigzag(13, factors.ring, factors.ulysses)}) {
            const Received received = probe(ranks, factors, parts, shape, rate);
            const DenseAttention dense = dense_under_loss(whole, received, parts, factors, fill);
            comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& inner) {
              comm::LossyCommunicator group(inner, lossy_options(rate, fill));
              SequenceAttention<double> attention(&group, factors, shape.heads);
              const auto got =
                  run_part(attention, parts, group.rank(), whole, whole.mask.mask(), TokenLayout::kSequenceFirst);
              DenseAttention want = dense;
              want.output = times(dense.output, received.outputs[static_cast<std::size_t>(group.rank())]);
              EXPECT_LE(error_of(got, want, parts.positions(group.rank(), 1), TokenLayout::kSequenceFirst), 1e-12)
                  << text(factors) << ", rank " << group.rank() << " at " << rate << ", "
                  << comm::fill_entry(fill).name;
              group.verify_fates();
              // In the backward pass, keys and values have only the losses of the forward pass.
              const auto statistics = group.collect_statistics(comm::LinkDetail::kOmit);
              EXPECT_EQ(statistics.size(), 1U);
            });
          }
        }
      }
    }
  }
}

// Gradients that are sent are lost, but keys and values are not. So the gradients of queries are exact, and those of a
// rank's keys and values come only from its own queries.
TEST(SequenceAttention, KeysAndValuesOfTheBackwardPassAreNotLostAgain) {
  const Whole whole({2, 13, 4, kWidth}, {MaskKind::kCausal});
  const SequenceParts parts = SequenceParts::zigzag(13, 3);
  comm::run_ranks(3, kTimeout, [&](comm::Communicator& inner) {
    comm::LossyOptions options = lossy_options(1, comm::Fill::kZero);
    options.network.of(sim::TrafficClass::kSequenceBackward)
        .swap(options.network.of(sim::TrafficClass::kSequenceForward));
    comm::LossyCommunicator group(inner, options);
    const std::vector<std::int64_t> positions = parts.positions(group.rank(), 1);
    const DenseAttention own = dense_attention(
        whole.q, whole.k, whole.v,
        [&](std::int64_t b, std::int64_t, std::int64_t q, std::int64_t k) {
          return std::ranges::count(positions, q) > 0 ? whole.mask.bias(b, q, k) : -kInfinity;
        },
        whole.dout);
    SequenceAttention<double> attention(&group, {1, 3}, 4);
    const auto got = run_part(attention, parts, group.rank(), whole, whole.mask.mask(), TokenLayout::kBatchFirst);
    EXPECT_LE(error_of(got, own, positions, TokenLayout::kBatchFirst), 1e-12);
    group.verify_fates();
  });
}

}  // namespace
}  // namespace droptest::models::sequence_loss_test
