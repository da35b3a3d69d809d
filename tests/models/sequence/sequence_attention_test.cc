// SPDX-License-Identifier: Apache-2.0
// Attention over the tokens of several ranks equals attention on one.
#include "models/sequence/sequence_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "tests/models/dropout_draws.h"
#include "tests/models/sequence/dense_attention.h"
#include "tests/sanitizers.h"

namespace droptest::models {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kTimeout{60000};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kWidth = 2;

std::vector<SequenceFactors> factors_of(int ranks) {
  std::vector<SequenceFactors> all;
  for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
    if (ranks % ulysses == 0) all.push_back({ulysses, ranks / ulysses});
  }
  return all;
}

std::string text(const SequenceFactors& factors) {
  return "ulysses " + std::to_string(factors.ulysses) + " x ring " + std::to_string(factors.ring);
}

/// A sequence with its masks and the dense result.
struct Whole {
  HeadShape shape;
  TestMask mask;
  DropoutMask dropout;
  WholeTensor q, k, v, dout;
  DenseAttention dense;
  Whole(const HeadShape& s, std::vector<MaskKind> kinds, std::uint64_t seed = 1, double p_dropout = 0)
      : shape(s),
        mask(std::move(kinds), s.batch, s.tokens, seed),
        dropout(dropout_of_keys(p_dropout)),
        q(s, 10 * seed + 1),
        k(s, 10 * seed + 2),
        v(s, 10 * seed + 3),
        dout(s, 10 * seed + 4),
        dense(dense_attention(q, k, v, mask.score_bias(), dout, {}, std::bind_front(factor_of_key, dropout))) {}
};

template <class T>
struct LocalResults {
  std::vector<T> output, grad_queries, grad_keys, grad_values;
};

/// This rank's part of a forward and a backward pass.
template <class T>
LocalResults<T> run_part(SequenceAttention<T>& attention, const SequenceParts& parts, int rank, const Whole& whole,
                         const AttentionMask& mask, TokenLayout layout) {
  const std::vector<std::int64_t> positions = parts.positions(rank, 1);
  HeadShape local = whole.shape;
  local.tokens = parts.length_of(rank);
  const auto part = [&](const WholeTensor& tensor) { return tensor.part<T>(positions, 0, local.heads, layout); };
  const auto view = [&](const std::vector<T>& elems) {
    return view_of("tensor", std::span<const T>(elems), local, layout);
  };
  LocalResults<T> results;
  const auto room = [&](std::vector<T>& elems) {
    elems.assign(local.elems(), std::numeric_limits<T>::quiet_NaN());
    return view_of("result", std::span(elems), local, layout);
  };
  const std::vector<T> q = part(whole.q);
  const std::vector<T> k = part(whole.k);
  const std::vector<T> v = part(whole.v);
  const std::vector<T> dout = part(whole.dout);
  const SequencePass pass{parts, mask, 3, whole.dropout};
  SavedAttention<T> saved;
  attention.forward(pass, view(q), view(k), view(v), room(results.output), saved, 1);
  attention.backward(pass, view(dout), saved,
                     {room(results.grad_queries), room(results.grad_keys), room(results.grad_values)}, 1);
  return results;
}

template <class T>
double error_of(const LocalResults<T>& got, const DenseAttention& want, const std::vector<std::int64_t>& positions,
                TokenLayout layout) {
  const auto difference = [&](const std::vector<T>& elems, const WholeTensor& whole) {
    return largest_difference(Doubles(elems.begin(), elems.end()),
                              whole.part<double>(positions, 0, whole.shape.heads, layout));
  };
  return std::max({difference(got.output, want.output), difference(got.grad_queries, want.grad_queries),
                   difference(got.grad_keys, want.grad_keys), difference(got.grad_values, want.grad_values)});
}

/// Parts of each kind: even, zigzag, all tokens but one on the last rank, and the last rank without a token.
std::vector<SequenceParts> parts_of(std::int64_t length, const SequenceFactors& factors) {
  const int ranks = factors.ulysses * factors.ring;
  std::vector<SequenceParts> all = {SequenceParts::even(length, ranks),
                                    SequenceParts::zigzag(length, factors.ring, factors.ulysses)};
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(ranks), 0);
  lengths.front() = std::min<std::int64_t>(length, 1);
  lengths.back() += length - lengths.front();
  all.push_back(SequenceParts::contiguous(lengths));
  std::ranges::reverse(lengths);
  lengths.back() = 0;
  lengths.front() = length;
  if (ranks > 2) std::swap(lengths[0], lengths[1]);
  all.push_back(SequenceParts::contiguous(lengths));
  return all;
}

/// Each case on all factorisations of 1 to 4 ranks.
template <class T>
void expect_equal_to_dense(const std::vector<std::unique_ptr<Whole>>& cases, double bound) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& group) {
      for (const SequenceFactors& factors : factors_of(ranks)) {
        std::map<std::int64_t, SequenceAttention<T>> attentions;
        for (const std::int64_t heads : {4, 6, 7}) {
          attentions.emplace(std::piecewise_construct, std::forward_as_tuple(heads),
                             std::forward_as_tuple(&group, factors, heads));
        }
        for (const std::unique_ptr<Whole>& whole : cases) {
          const AttentionMask mask = whole->mask.mask();
          for (const SequenceParts& parts : parts_of(whole->shape.tokens, factors)) {
            for (const TokenLayout layout : {TokenLayout::kBatchFirst, TokenLayout::kSequenceFirst}) {
              const auto got = run_part(attentions.at(whole->shape.heads), parts, group.rank(), *whole, mask, layout);
              EXPECT_LE(error_of(got, whole->dense, parts.positions(group.rank(), 1), layout), bound)
                  << text(factors) << ", rank " << group.rank() << ", S " << whole->shape.tokens << ", heads "
                  << whole->shape.heads << ", batch " << whole->shape.batch;
            }
          }
        }
      }
    });
  }
}

TEST(SequenceAttention, EqualsOneRankForAllLengthsHeadsAndBatches) {
  std::vector<std::unique_ptr<Whole>> cases;
  for (const std::int64_t length : {1, 2, 3, 4, 5, 7, 13, 64}) {  // P - 1, P and P + 1 are among them
    for (const std::int64_t heads : {4, 6, 7}) {
      for (const std::int64_t batch : {1, 3}) {
        cases.push_back(std::make_unique<Whole>(HeadShape{batch, length, heads, kWidth},
                                                std::vector{MaskKind::kCausal, MaskKind::kKeysAllowed}));
      }
    }
  }
  expect_equal_to_dense<double>(cases, 1e-12);
}

TEST(SequenceAttention, EqualsOneRankUnderEveryMaskAndPairOfMasks) {
  std::vector<std::unique_ptr<Whole>> cases;
  for (const std::vector<MaskKind>& kinds : all_mask_kinds()) {
    for (const HeadShape& shape :
         {HeadShape{3, 13, 6, kWidth}, HeadShape{1, 7, 4, kWidth}, HeadShape{3, 5, 7, kWidth}}) {
      if (kSanitized && shape.heads == 6) continue;
      cases.push_back(std::make_unique<Whole>(shape, kinds));
    }
  }
  expect_equal_to_dense<double>(cases, 1e-12);
}

TEST(SequenceAttention, WithDropoutDrawsTheMasksOfOneRank) {
  std::vector<std::unique_ptr<Whole>> cases;
  for (const std::vector<MaskKind>& kinds : all_mask_kinds()) {
    cases.push_back(std::make_unique<Whole>(HeadShape{kSanitized ? 1 : 3, 13, 7, kWidth}, kinds, 1, 0.3));
  }
  for (const std::int64_t length : {1, 3, 64}) {
    cases.push_back(std::make_unique<Whole>(HeadShape{2, length, 6, kWidth}, std::vector{MaskKind::kCausal}, 2, 0.6));
  }
  expect_equal_to_dense<double>(cases, 1e-12);
}

TEST(SequenceAttention, EqualsOneRankInFloat) {
  std::vector<std::unique_ptr<Whole>> cases;
  cases.push_back(std::make_unique<Whole>(HeadShape{2, 13, 6, kWidth}, std::vector{MaskKind::kCausal}));
  cases.push_back(std::make_unique<Whole>(HeadShape{2, 13, 6, kWidth}, std::vector{MaskKind::kCausal}, 1, 0.3));
  expect_equal_to_dense<float>(cases, 1e-5);
}

TEST(SequenceAttention, RefusesWrongArguments) {
  comm::run_ranks(4, kTimeout, [](comm::Communicator& group) {
    const auto error = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const ConfigError& e) {
        return e.what();
      }
      return "no error";
    };
    EXPECT_THAT(error([&] {
                  SequenceAttention<double>(&group, {4, 1}, 3);
                }),
                HasSubstr("ulysses: got 3 heads for 4 ranks, want at least one head for each rank"));
    EXPECT_THAT(error([&] {
                  SequenceAttention<double>(&group, {2, 1}, 4);
                }),
                HasSubstr("got ulysses 2 x ring 1, want a product of 4 ranks"));
    SequenceAttention<double> attention(&group, {4, 1}, 4);
    const SequenceParts parts = SequenceParts::even(8, 4);
    Doubles elems(2 * 3 * 4);
    const auto view = view_of("q", std::span(elems), {1, 3, 4, 2}, TokenLayout::kBatchFirst);
    SavedAttention<double> saved;
    const AttentionMask mask(Causality::kCausal);
    EXPECT_THAT(error([&] {
                  attention.forward({parts, mask}, view, view, view, view, saved, 1);
                }),
                HasSubstr("queries: axis 1 (tokens): got 3, want 2"));
  });
  EXPECT_THROW(SequenceParts({{{0, 3}}, {{2, 4}}}), ConfigError);
  EXPECT_THROW(SequenceParts({{{0, 3}}, {{4, 4}}}), ConfigError);
  EXPECT_THROW(SequenceParts::contiguous(std::vector<std::int64_t>{3, -1}), ConfigError);
}

TEST(SequenceAttention, SavesTheElementsOfItsFormula) {
  const Whole whole({3, 13, 7, kWidth}, {MaskKind::kCausal});
  for (const SequenceFactors& factors : factors_of(4)) {
    const SequenceParts parts = SequenceParts::even(13, 4);
    comm::run_ranks(4, kTimeout, [&](comm::Communicator& group) {
      SequenceAttention<double> attention(&group, factors, 7);
      const Doubles local = whole.q.part<double>(parts.positions(group.rank(), 1), 0, 7, TokenLayout::kBatchFirst);
      const HeadShape shape{3, parts.length_of(group.rank()), 7, kWidth};
      const auto view = view_of("t", std::span<const double>(local), shape, TokenLayout::kBatchFirst);
      Doubles output(local.size());
      SavedAttention<double> saved;
      const AttentionMask mask(Causality::kCausal);
      attention.forward({parts, mask}, view, view, view,
                        view_of("t", std::span(output), shape, TokenLayout::kBatchFirst), saved, 1);
      EXPECT_EQ(saved.queries.size() + saved.keys.size() + saved.values.size() + saved.output.size() +
                    saved.log_sum_exp.size(),
                attention.saved_elems(parts, 3, kWidth));
      EXPECT_TRUE(saved.absent.empty());
    });
  }
}

TEST(SequenceParts, OfAgreedLengths) {
  comm::run_ranks(3, kTimeout, [](comm::Communicator& group) {
    const SequenceParts parts = SequenceParts::agreed(2 * group.rank(), group);
    EXPECT_EQ(parts.length(), 6);
    EXPECT_EQ(parts.positions(group.rank(), 1).size(), static_cast<std::size_t>(2 * group.rank()));
    EXPECT_EQ(parts.positions(0, 3), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  });
}

TEST(SequenceParts, ZigzagHasEvenWorkAndContiguousHasNot) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& group) {
      SequenceAttention<float> attention(&group, {1, ranks}, 2);
      for (const std::int64_t length : {2, 4, 10}) {
        const std::int64_t all = 2 * ranks * length;
        // All pairs, evenly: S (S + 1) / 2 of each of two heads.
        EXPECT_EQ(attention.pairs(SequenceParts::zigzag(all, ranks), Causality::kCausal) * ranks, all * (all + 1));
        if (ranks > 1 && group.rank() == 0) {
          EXPECT_LT(attention.pairs(SequenceParts::even(all, ranks), Causality::kCausal) * ranks, all * (all + 1));
        }
      }
    });
  }
}

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

TEST(SequenceAttention, SendsTheElementsOfItsFormula) {
  const HeadShape shape{3, 13, 7, kWidth};
  const Whole whole(shape, {MaskKind::kCausal});
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (const SequenceFactors& factors : factors_of(ranks)) {
      for (const SequenceParts& parts : parts_of(13, factors)) {
        std::mutex mutex;
        SequenceTraffic expected;
        std::map<std::string, std::uint64_t> sent;
        comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& inner) {
          comm::LossyOptions options = lossy_options(0, comm::Fill::kZero);
          options.network.of(sim::TrafficClass::kSequenceBackward) =
              options.network.of(sim::TrafficClass::kSequenceForward);
          comm::LossyCommunicator group(inner, options);
          SequenceAttention<double> attention(&group, factors, shape.heads);
          run_part(attention, parts, group.rank(), whole, whole.mask.mask(), TokenLayout::kBatchFirst);
          const SequenceTraffic mine = attention.traffic(parts, shape.batch, shape.width);
          const auto statistics = group.collect_statistics(comm::LinkDetail::kOmit);
          const std::lock_guard lock(mutex);
          expected.forward_elems += mine.forward_elems;
          expected.backward_elems += mine.backward_elems;
          if (group.rank() == 0) {
            for (const auto& of_class : statistics) {
              sent[std::string(sim::traffic_class_name(of_class.traffic_class))] = of_class.total().bytes;
            }
          }
        });
        EXPECT_EQ(sent["sequence_forward"], 8 * expected.forward_elems) << text(factors);
        EXPECT_EQ(sent["sequence_backward"], 8 * expected.backward_elems) << text(factors);
      }
    }
  }
  // In words: of even parts, Ulysses sends 4 (P - 1) / P of the local tensors each way, a ring P - 1 times keys and
  // values forward, and those and their gradients backward.
  comm::run_ranks(4, kTimeout, [](comm::Communicator& group) {
    const SequenceParts parts = SequenceParts::even(16, 4);
    const std::uint64_t local = 4 * 8 * 2;
    const SequenceTraffic ulysses = SequenceAttention<float>(&group, {4, 1}, 8).traffic(parts, 1, 2);
    EXPECT_EQ(ulysses.forward_elems, 4 * local * 3 / 4);
    EXPECT_EQ(ulysses.backward_elems, 4 * local * 3 / 4);
    const SequenceTraffic ring = SequenceAttention<float>(&group, {1, 4}, 8).traffic(parts, 1, 2);
    EXPECT_EQ(ring.forward_elems, 3 * 2 * local);
    EXPECT_EQ(ring.backward_elems, 3 * 4 * local);
  });
}

/// The elements that each rank received in a lossy forward pass, found by sending ones over the same network: the
/// product of a tensor with `arrived` is what the rank computed with.
struct Received {
  std::vector<WholeTensor> queries;  ///< by rank
  std::vector<WholeTensor> keys;
  std::vector<WholeTensor> values;
  std::vector<WholeTensor> outputs;  ///< as they return to the tokens' rank
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

/// Each rank's queries and heads by dense attention with what the rank received.
DenseAttention dense_under_loss(const Whole& whole, const Received& received, const SequenceParts& parts,
                                const SequenceFactors& factors, comm::Fill fill) {
  const HeadShape& shape = whole.shape;
  const int u = factors.ulysses;
  const auto heads = comm::even_counts(static_cast<std::uint64_t>(shape.heads), u);
  DenseAttention sum{WholeTensor(shape), {}, WholeTensor(shape), WholeTensor(shape), WholeTensor(shape)};
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
                        times(whole.v, received.values[me]), bias, whole.dout);
    add_to(sum.output, of_rank.output);
    add_to(sum.grad_queries, of_rank.grad_queries);
    add_to(sum.grad_keys, of_rank.grad_keys);
    add_to(sum.grad_values, of_rank.grad_values);
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
              // Backward, keys and values have the losses of the forward pass, and no others.
              const auto statistics = group.collect_statistics(comm::LinkDetail::kOmit);
              EXPECT_EQ(statistics.size(), 1U);
            });
          }
        }
      }
    }
  }
}

// The gradients that travel are lost, but not the keys and values: the queries' gradients are exact, and a rank's keys
// and values have those from its own queries.
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

/// Random numbers of a case: draw(n) is below n.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  std::int64_t draw(std::int64_t below) {
    return static_cast<std::int64_t>((formula_number(seed_, index_++) + 0.5) * static_cast<double>(below));
  }

 private:
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
};

TEST(SequenceAttention, EqualsOneRankForRandomShapes) {
  const char* const wanted = std::getenv("DROPTEST_RANDOM_SEQUENCES");
  const int cases = wanted == nullptr ? 300 : std::atoi(wanted);
  for (int i = 0; i < cases; ++i) {
    Draws draws(static_cast<std::uint64_t>(1000 + i));
    const int ranks = static_cast<int>(1 + draws.draw(4));
    const std::vector<SequenceFactors> all = factors_of(ranks);
    const SequenceFactors factors = all[static_cast<std::size_t>(draws.draw(static_cast<std::int64_t>(all.size())))];
    const HeadShape shape{1 + draws.draw(3), draws.draw(24), factors.ulysses + draws.draw(5), 1 + draws.draw(4)};
    std::vector<MaskKind> kinds;
    for (int kind = 0; kind < kMaskKinds; ++kind) {
      if (draws.draw(4) == 0) kinds.push_back(static_cast<MaskKind>(kind));
    }
    const Whole whole(shape, kinds, static_cast<std::uint64_t>(i));
    // Any rank has any tokens, in ranges of any order.
    std::vector<std::vector<PositionRange>> ranges(static_cast<std::size_t>(ranks));
    for (std::int64_t begin = 0; begin < shape.tokens;) {
      const std::int64_t count = std::min(1 + draws.draw(6), shape.tokens - begin);
      auto& of_rank = ranges[static_cast<std::size_t>(draws.draw(ranks))];
      of_rank.insert(draws.draw(2) == 0 ? of_rank.begin() : of_rank.end(), {begin, count});
      begin += count;
    }
    const SequenceParts parts(ranges);
    const TokenLayout layout = draws.draw(2) == 0 ? TokenLayout::kBatchFirst : TokenLayout::kSequenceFirst;
    comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& group) {
      SequenceAttention<double> attention(&group, factors, shape.heads);
      const auto got = run_part(attention, parts, group.rank(), whole, whole.mask.mask(), layout);
      EXPECT_LE(error_of(got, whole.dense, parts.positions(group.rank(), 1), layout), 1e-12)
          << "case " << i << ": " << text(factors) << ", S " << shape.tokens << ", " << mask_name(kinds);
    });
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace droptest::models
