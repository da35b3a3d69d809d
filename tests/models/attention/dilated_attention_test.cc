// SPDX-License-Identifier: Apache-2.0
// Compares dilated attention with dense attention in which a key counts once for each branch that has it.
#include "models/attention/dilated_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "tests/models/attention/branch_visits.h"
#include "tests/models/attention/dense_attention.h"
#include "tests/models/dropout_draws.h"
#include "tests/sanitizers.h"

namespace droptest::models::dilated_attention_test {
namespace {

using ::testing::HasSubstr;
using Branches = std::vector<DilatedBranch>;

constexpr std::chrono::milliseconds kTimeout{60000};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Whole {
  HeadShape shape;
  TestMask mask;
  DropoutMask dropout;
  WholeTensor q, k, v, dout;
  Whole(const HeadShape& s, std::vector<MaskKind> kinds, double p_dropout = 0)
      : shape(s),
        mask(std::move(kinds), s.batch, s.tokens),
        dropout(dropout_of_keys(p_dropout)),
        q(s, 11),
        k(s, 12),
        v(s, 13),
        dout(s, 14) {}

  DenseAttention dense(const Branches& branches, const WholeTensor& grad) const {
    return dense_attention(
        q, k, v,
        [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
          return mask.bias(b, i, j) + log_visits(branches, h, i, j);
        },
        grad, {}, std::bind_front(factor_of_key, dropout));
  }
  /// The gradient with constant weights of the branches: each branch separately gets its weight's share of the output's
  /// gradient.
  DenseAttention stopped(const Branches& branches) const {
    DenseAttention all = dense(branches, dout);
    for (WholeTensor* grad : {&all.grad_queries, &all.grad_keys, &all.grad_values}) *grad = WholeTensor(shape);
    for (const DilatedBranch& branch : branches) {
      const DenseAttention one = dense({branch}, dout);
      WholeTensor weighted(shape);
      std::size_t row = 0;
      for (std::int64_t b = 0; b < shape.batch; ++b) {
        for (std::int64_t h = 0; h < shape.heads; ++h) {
          for (std::int64_t t = 0; t < shape.tokens; ++t, ++row) {
            if (one.log_sum_exp[row] == -kInfinity) continue;
            const double weight = std::exp(one.log_sum_exp[row] - all.log_sum_exp[row]);
            for (std::int64_t d = 0; d < shape.width; ++d) weighted.at(b, t, h, d) = weight * dout.at(b, t, h, d);
          }
        }
      }
      const DenseAttention gradient = dense({branch}, weighted);
      for (std::size_t i = 0; i < shape.elems(); ++i) {
        all.grad_queries.elems[i] += gradient.grad_queries.elems[i];
        all.grad_keys.elems[i] += gradient.grad_keys.elems[i];
        all.grad_values.elems[i] += gradient.grad_values.elems[i];
      }
    }
    return all;
  }
};

/// The largest difference of a rank's results.
double error_of(DilatedAttention<double>& attention, int rank, const Whole& whole, const SequenceParts& parts,
                TokenLayout layout, const DenseAttention& want) {
  const std::vector<std::int64_t> positions = parts.positions(rank, 1);
  HeadShape local = whole.shape;
  local.tokens = parts.length_of(rank);
  const auto part = [&](const WholeTensor& tensor) { return tensor.part<double>(positions, 0, local.heads, layout); };
  const auto view = [&](const Doubles& elems) { return view_of("t", std::span<const double>(elems), local, layout); };
  const auto room = [&](Doubles& elems) {
    elems.assign(local.elems(), std::numeric_limits<double>::quiet_NaN());
    return view_of("t", std::span(elems), local, layout);
  };
  const Doubles q = part(whole.q);
  const Doubles k = part(whole.k);
  const Doubles v = part(whole.v);
  const Doubles dout = part(whole.dout);
  Doubles out, dq, dk, dv;
  const AttentionMask mask = whole.mask.mask();
  const SequencePass pass{parts, mask, 2, whole.dropout};
  SavedDilatedAttention<double> saved;
  attention.forward(pass, view(q), view(k), view(v), room(out), saved, 1);
  const auto zeros = [&](Doubles& elems) {
    elems.assign(local.elems(), 0);
    return view_of("t", std::span(elems), local, layout);
  };
  attention.backward(pass, view(out), view(dout), saved, {zeros(dq), zeros(dk), zeros(dv)}, 1);
  return std::max({largest_difference(out, part(want.output)), largest_difference(dq, part(want.grad_queries)),
                   largest_difference(dk, part(want.grad_keys)), largest_difference(dv, part(want.grad_values))});
}

double error_on(comm::Communicator* group, const Whole& whole, const DilatedOptions& options,
                const SequenceParts& parts, TokenLayout layout, const DenseAttention& want) {
  DilatedAttention<double> attention(group, options, whole.shape.heads);
  return error_of(attention, group == nullptr ? 0 : group->rank(), whole, parts, layout, want);
}

/// Even parts, uneven ones that are no multiple of any dilation, and parts without a token.
std::vector<SequenceParts> parts_of(std::int64_t length, int ranks) {
  std::vector<SequenceParts> all = {SequenceParts::even(length, ranks)};
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(ranks), 0);
  for (std::int64_t rest = length, i = 0; rest > 0; ++i) {
    const std::int64_t count = std::min<std::int64_t>(rest, 1 + 4 * (i % 3));
    lengths[static_cast<std::size_t>(i % ranks)] += count;
    rest -= count;
  }
  all.push_back(SequenceParts::contiguous(lengths));
  std::vector<std::int64_t> few(static_cast<std::size_t>(ranks), 0);
  few[static_cast<std::size_t>(ranks / 2)] = length - length / 3;
  few.back() += length / 3;
  all.push_back(SequenceParts::contiguous(few));
  return all;
}

const std::vector<Branches>& all_branches() {
  static const std::vector<Branches> all = {
      {{6, 4}}, {{5, 3}}, {{4, 1}, {8, 2}, {16, 4}}, {{6, 4}, {5, 3}, {7, 2}}, {{100, 3}, {2, 2}, {1, 1}}};
  return all;
}

TEST(DilatedAttention, EqualsDenseAttentionOverTheKeysOfAllBranches) {
  for (const std::vector<MaskKind>& kinds : {std::vector{MaskKind::kNone}, std::vector{MaskKind::kCausal},
                                             std::vector{MaskKind::kCausal, MaskKind::kKeysAllowed},
                                             std::vector{MaskKind::kBatchPairsAdded, MaskKind::kDocuments}}) {
    for (const std::int64_t length : {1, 6, 13, 23}) {
      for (const std::int64_t heads : {4, 6, 7}) {
        if (kSanitized && (length == 23 || heads == 6)) continue;
        const Whole whole({2, length, heads, 2}, kinds);
        for (const Branches& branches : all_branches()) {
          const DenseAttention exact = whole.dense(branches, whole.dout);
          const DenseAttention stopped = whole.stopped(branches);
          for (int ranks = 1; ranks <= 4; ++ranks) {
            comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& group) {
              for (const SequenceParts& parts : parts_of(length, ranks)) {
                const std::string where = mask_name(kinds) + ", S " + std::to_string(length) + ", heads " +
                                          std::to_string(heads) + ", ranks " + std::to_string(ranks) + ", branches " +
                                          std::to_string(&branches - all_branches().data());
                EXPECT_LE(error_on(&group, whole, {branches}, parts, TokenLayout::kBatchFirst, exact), 1e-12) << where;
                EXPECT_LE(error_on(&group, whole, {branches, BranchGradient::kStopped}, parts,
                                   TokenLayout::kSequenceFirst, stopped),
                          1e-12)
                    << where << ", stopped";
              }
            });
          }
        }
      }
    }
  }
}

TEST(DilatedAttention, EqualsDenseAttentionUnderEveryMaskAndPairOfMasks) {
  const Branches branches = {{6, 4}, {5, 3}, {7, 2}};
  for (const std::vector<MaskKind>& kinds : all_mask_kinds()) {
    for (const HeadShape& shape : {HeadShape{1, 13, 6, 2}, HeadShape{3, 7, 4, 2}}) {
      const Whole whole(shape, kinds);
      const DenseAttention exact = whole.dense(branches, whole.dout);
      for (int ranks = 1; ranks <= 4; ++ranks) {
        comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& group) {
          for (const SequenceParts& parts : parts_of(shape.tokens, ranks)) {
            EXPECT_LE(error_on(&group, whole, {branches}, parts, TokenLayout::kSequenceFirst, exact), 1e-12)
                << mask_name(kinds) << ", S " << shape.tokens << ", ranks " << ranks;
          }
        });
      }
    }
  }
}

// A key that several branches have is dropped from all of them.
TEST(DilatedAttention, WithDropoutDrawsTheMasksOfDenseAttention) {
  for (const std::vector<MaskKind>& kinds :
       {std::vector{MaskKind::kNone}, std::vector{MaskKind::kCausal, MaskKind::kDocuments}}) {
    for (const std::int64_t length : {7, 70}) {  // 70: keys of two groups of draws
      const Whole whole({2, length, 5, 2}, kinds, 0.4);
      for (const Branches& branches : {Branches{{6, 4}, {5, 3}, {7, 2}}, Branches{{100, 3}, {64, 1}, {90, 80}}}) {
        const DenseAttention exact = whole.dense(branches, whole.dout);
        const DenseAttention stopped = whole.stopped(branches);
        for (const int ranks : {1, 2, 3}) {
          comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& group) {
            for (const SequenceParts& parts : parts_of(length, ranks)) {
              const std::string where = std::to_string(ranks) + " ranks, S " + std::to_string(length);
              EXPECT_LE(error_on(&group, whole, {branches}, parts, TokenLayout::kBatchFirst, exact), 1e-12) << where;
              EXPECT_LE(error_on(&group, whole, {branches, BranchGradient::kStopped}, parts, TokenLayout::kBatchFirst,
                                 stopped),
                        1e-12)
                  << where << ", stopped";
            }
          });
        }
      }
    }
  }
}

TEST(DilatedAttention, EqualsDenseAttentionOf64Tokens) {
  for (const std::int64_t heads : {4, 6, 7}) {
    const Whole whole({3, 64, heads, 2}, {MaskKind::kCausal});
    const DenseAttention exact = whole.dense(all_branches()[3], whole.dout);
    for (const int ranks : {1, 3, 4}) {
      comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& group) {
        for (const SequenceParts& parts : parts_of(64, ranks)) {
          EXPECT_LE(error_on(&group, whole, {all_branches()[3]}, parts, TokenLayout::kBatchFirst, exact), 1e-12)
              << heads << " heads, ranks " << ranks;
        }
      });
    }
  }
}

// Plans are cached for the last lengths and causality.
TEST(DilatedAttention, TakesAnyLengthsAndCausalityOneAfterTheOther) {
  const Branches branches = {{3, 1}, {8, 4}};
  comm::run_ranks(2, kTimeout, [&](comm::Communicator& group) {
    DilatedAttention<double> attention(&group, {branches}, 3);
    for (const auto& [first, second, kind] :
         {std::tuple(7, 6, MaskKind::kCausal), std::tuple(7, 6, MaskKind::kNone), std::tuple(2, 11, MaskKind::kNone),
          std::tuple(4, 1, MaskKind::kNone), std::tuple(7, 6, MaskKind::kCausal)}) {
      const Whole whole({2, first + second, 3, 2}, {kind});
      const SequenceParts parts = SequenceParts::contiguous(std::vector<std::int64_t>{first, second});
      EXPECT_LE(
          error_of(attention, group.rank(), whole, parts, TokenLayout::kBatchFirst, whole.dense(branches, whole.dout)),
          1e-12)
          << first << " and " << second << " tokens";
    }
  });
}

TEST(DilatedAttention, OfOneWholeSegmentIsDenseAttention) {
  const Whole whole({2, 13, 3, 4}, {MaskKind::kCausal});
  const DenseAttention dense = dense_attention(whole.q, whole.k, whole.v, whole.mask.score_bias(), whole.dout);
  EXPECT_LE(error_on(nullptr, whole, {{{13, 1}}}, SequenceParts::even(13, 1), TokenLayout::kBatchFirst, dense), 1e-12);
}

TEST(DilatedAttention, TheHeadsOfATensorParallelRankHaveTheirNumbersOverAllRanks) {
  const Whole whole({1, 9, 2, 2}, {MaskKind::kNone});
  const Branches branches = {{6, 4}};
  const DenseAttention dense = dense_attention(
      whole.q, whole.k, whole.v,
      [&](std::int64_t, std::int64_t h, std::int64_t i, std::int64_t j) { return log_visits(branches, 3 + h, i, j); },
      whole.dout);
  EXPECT_LE(error_on(nullptr, whole, {branches, BranchGradient::kExact, 3}, SequenceParts::even(9, 1),
                     TokenLayout::kBatchFirst, dense),
            1e-12);
}

// The output as a function of the inputs has the exact gradient, not the stopped one.
TEST(DilatedAttention, ExactGradientsAreFiniteDifferences) {
  Whole whole({1, 7, 2, 2}, {MaskKind::kCausal});
  const Branches branches = {{4, 1}, {7, 2}};
  const DenseAttention exact = whole.dense(branches, whole.dout);
  const DenseAttention stopped = whole.stopped(branches);
  double apart = 0;
  WholeTensor* const inputs[] = {&whole.q, &whole.k, &whole.v};
  const WholeTensor* const gradients[] = {&exact.grad_queries, &exact.grad_keys, &exact.grad_values};
  const SequenceParts parts = SequenceParts::even(7, 1);
  const auto loss = [&] {
    DilatedAttention<double> attention(nullptr, {branches}, 2);
    const AttentionMask mask(Causality::kCausal);
    const auto view = [&](WholeTensor& t) {
      return view_of("t", std::span(t.elems), t.shape, TokenLayout::kBatchFirst);
    };
    WholeTensor out(whole.shape);
    SavedDilatedAttention<double> saved;
    attention.forward({parts, mask}, view(whole.q), view(whole.k), view(whole.v), view(out), saved, 1);
    double sum = 0;
    for (std::size_t i = 0; i < out.elems.size(); ++i) sum += out.elems[i] * whole.dout.elems[i];
    return sum;
  };
  for (std::size_t tensor = 0; tensor < 3; ++tensor) {
    for (std::size_t i = 0; i < whole.shape.elems(); ++i) {
      double& x = inputs[tensor]->elems[i];
      const double at = x;
      x = at + 1e-5;
      const double above = loss();
      x = at - 1e-5;
      const double below = loss();
      x = at;
      EXPECT_NEAR(gradients[tensor]->elems[i], (above - below) / 2e-5, 1e-7);
    }
  }
  for (std::size_t i = 0; i < whole.shape.elems(); ++i) {
    apart = std::max(apart, std::abs(exact.grad_keys.elems[i] - stopped.grad_keys.elems[i]));
  }
  EXPECT_GT(apart, 1e-4);
}

TEST(DilatedAttention, RefusesBranchesThatDoNotFit) {
  const auto error = [](const Branches& branches) -> std::string {
    try {
      DilatedAttention<float>(nullptr, {branches}, 4);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error({}), "branches: got none, want at least one");
  EXPECT_EQ(error({{4, 1}, {0, 1}}), "branches/1/segment_length: got 0, want at least 1");
  EXPECT_EQ(error({{4, 5}}), "branches/0/dilation: got 5, want 1 to the segment length 4");
  EXPECT_EQ(error({{4, 1}, {8, 2}, {9, 0}}), "branches/2/dilation: got 0, want 1 to the segment length 9");
  EXPECT_THROW(dilated_plan({4, 1}, SequenceParts::zigzag(16, 2), 0, 0, 4, Causality::kAny), ConfigError);
}

TEST(DilatedAttention, VisitsAreThoseOfTheDefinition) {
  for (const Branches& branches : all_branches()) {
    for (std::int64_t h = 0; h < 5; ++h) {
      for (std::int64_t q = 0; q < 17; ++q) {
        for (std::int64_t k = 0; k < 17; ++k) EXPECT_EQ(dilated_visits(branches, h, q, k), visits(branches, h, q, k));
      }
    }
  }
}

comm::LossyOptions lossy_options(double rate, comm::Fill fill) {
  comm::ClassNetwork network;
  network.payload_bytes = 16;
  network.gather.loss = std::make_shared<sim::Bernoulli>(rate);
  network.gather.fill = fill;
  comm::LossyOptions options;
  options.network.seed = 7;
  options.network.of(sim::TrafficClass::kSequenceForward) = network;
  return options;
}

// A rank sends the tokens of a shared segment, as keys and as values, to each other rank of the segment (only to later
// ranks with a causal mask). For each head, it sends one token in r.
TEST(DilatedAttention, SendsTheSparsifiedTokensAlone) {
  const std::int64_t length = 29;
  for (const MaskKind kind : {MaskKind::kNone, MaskKind::kCausal}) {
    const Whole whole({2, length, 6, 3}, {kind});
    for (const Branches& branches : all_branches()) {
      for (const SequenceParts& parts : parts_of(length, 4)) {
        std::uint64_t expected = 0;
        for (int from = 0; from < 4; ++from) {
          for (int to = 0; to < 4; ++to) {
            if (from == to || (kind == MaskKind::kCausal && to < from)) continue;
            for (const auto& [w, r] : branches) {
              for (std::int64_t h = 0; h < 6; ++h) {
                for (const std::int64_t t : parts.positions(from, 1)) {
                  const auto there = parts.positions(to, 1);
                  const bool shares = std::ranges::any_of(there, [&, w = w](std::int64_t u) { return u / w == t / w; });
                  if (shares && t % w % r == h % r) expected += 2 * 3;
                }
              }
            }
          }
        }
        comm::run_ranks(4, kTimeout, [&](comm::Communicator& inner) {
          comm::LossyOptions options = lossy_options(0, comm::Fill::kZero);
          options.network.of(sim::TrafficClass::kSequenceBackward) =
              options.network.of(sim::TrafficClass::kSequenceForward);
          comm::LossyCommunicator group(inner, options);
          error_on(&group, whole, {branches}, parts, TokenLayout::kBatchFirst, whole.dense(branches, whole.dout));
          for (const auto& of_class : group.collect_statistics(comm::LinkDetail::kOmit)) {
            EXPECT_EQ(of_class.total().bytes, 8 * 2 * expected);
          }
        });
      }
    }
  }
}

// Sends ones over the same network to find the heads of tokens that a rank lost; dense attention then masks them. There
// is one branch, so that a key is either lost or not.
TEST(DilatedAttention, AbsentKeysAreMaskedKeysOfTheirReceiver) {
  const Branches branches = {{13, 3}};
  const Whole whole({1, 13, 4, 2}, {MaskKind::kNone});
  for (const double rate : {0.05, 0.2, 1.0}) {
    for (int ranks = 2; ranks <= 4; ++ranks) {
      const SequenceParts parts = parts_of(13, ranks)[1];
      DenseAttention sum{
          WholeTensor(whole.shape), {}, WholeTensor(whole.shape), WholeTensor(whole.shape), WholeTensor(whole.shape)};
      std::mutex mutex;
      std::int64_t lost = 0;
      comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& inner) {
        comm::LossyCommunicator group(inner, lossy_options(rate, comm::Fill::kZero));
        const int me = group.rank();
        // The (head, token) pairs of a source with the tokens of each head's residue.
        const auto heads_of = [&](int source) {
          std::vector<std::pair<std::int64_t, std::int64_t>> all;
          for (std::int64_t h = 0; h < 4; ++h) {
            for (const std::int64_t t : parts.positions(source, 1)) {
              if (t % 3 == h % 3) all.push_back({h, t});
            }
          }
          return all;
        };
        std::vector<std::uint64_t> send, receive;
        std::uint64_t total = 0;
        for (int other = 0; other < ranks; ++other) {
          const bool shares = other != me && parts.length_of(other) > 0 && parts.length_of(me) > 0;
          send.push_back(shares ? 2 * heads_of(me).size() : 0);
          receive.push_back(shares ? 2 * heads_of(other).size() : 0);
          total += receive.back();
        }
        std::uint64_t sent = 0;
        for (const std::uint64_t count : send) sent += count;
        std::vector<std::vector<bool>> gone(4, std::vector<bool>(13));
        for (int tensor = 0; tensor < 2; ++tensor) {
          const Doubles ones(sent, 1);
          Doubles got(total);
          group.all_to_all(std::span<const double>(ones), send, std::span(got), receive,
                           {sim::TrafficClass::kSequenceForward, "probe"});
          std::size_t at = 0;
          for (int other = 0; other < ranks; ++other) {
            if (receive[static_cast<std::size_t>(other)] == 0) continue;
            for (const auto& [h, t] : heads_of(other)) {
              if (got[at] == 0 || got[at + 1] == 0)
                gone[static_cast<std::size_t>(h)][static_cast<std::size_t>(t)] = true;
              at += 2;
            }
          }
        }
        std::vector<bool> has_query(13);
        for (const std::int64_t t : parts.positions(me, 1)) has_query[static_cast<std::size_t>(t)] = true;
        const DenseAttention mine = dense_attention(
            whole.q, whole.k, whole.v,
            [&](std::int64_t, std::int64_t h, std::int64_t i, std::int64_t j) {
              if (!has_query[static_cast<std::size_t>(i)]) return -kInfinity;
              return gone[static_cast<std::size_t>(h)][static_cast<std::size_t>(j)] ? -kInfinity
                                                                                    : log_visits(branches, h, i, j);
            },
            whole.dout);
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < whole.shape.elems(); ++i) {
          sum.output.elems[i] += mine.output.elems[i];
          sum.grad_queries.elems[i] += mine.grad_queries.elems[i];
          sum.grad_keys.elems[i] += mine.grad_keys.elems[i];
          sum.grad_values.elems[i] += mine.grad_values.elems[i];
        }
        for (const auto& of_head : gone) lost += std::ranges::count(of_head, true);
      });
      EXPECT_GT(lost, 0);
      comm::run_ranks(ranks, kTimeout, [&](comm::Communicator& inner) {
        comm::LossyCommunicator group(inner, lossy_options(rate, comm::Fill::kAbsent));
        EXPECT_LE(error_on(&group, whole, {branches}, parts, TokenLayout::kBatchFirst, sum), 1e-12) << rate;
        group.verify_fates();
      });
    }
  }
}

}  // namespace
}  // namespace droptest::models::dilated_attention_test
