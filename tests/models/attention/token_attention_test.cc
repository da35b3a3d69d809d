// SPDX-License-Identifier: Apache-2.0
// Compares the blocked attention with dense attention.
#include "models/attention/token_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "models/kernels/chunks.h"
#include "sim/error.h"
#include "tests/models/attention/dense_attention.h"
#include "tests/models/dropout_draws.h"

namespace droptest::models::token_attention_test {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::int64_t> positions_to(std::int64_t length) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(length));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

/// The attention of one rank, in the layout of its tensors.
template <class T>
struct OneRank {
  HeadShape shape;
  TokenLayout layout = TokenLayout::kBatchFirst;
  std::vector<T> q, k, v, dout, out, lse, dq, dk, dv, dlse;

  OneRank(const HeadShape& s, TokenLayout l) : shape(s), layout(l) {
    const auto positions = positions_to(s.tokens);
    q = WholeTensor(s, 1).part<T>(positions, 0, s.heads, l);
    k = WholeTensor(s, 2).part<T>(positions, 0, s.heads, l);
    v = WholeTensor(s, 3).part<T>(positions, 0, s.heads, l);
    dout = WholeTensor(s, 4).part<T>(positions, 0, s.heads, l);
    out.assign(s.elems(), std::numeric_limits<T>::quiet_NaN());
    lse.assign(s.elems() / static_cast<std::uint64_t>(s.width), std::numeric_limits<T>::quiet_NaN());
    dq.assign(s.elems(), T(0));
    dk = dv = dq;
  }
  template <class U>
  HeadView<U> view(std::vector<std::remove_const_t<U>>& elems) const {
    return view_of("tensor", std::span<U>(elems), shape, layout);
  }
  /// Attention over the patterns, one after the other.
  void run(const AttentionMask& mask, const std::vector<AttentionPattern>& patterns,
           std::span<const std::uint8_t> absent = {}, int threads = 1, const DropoutMask& dropout = {}) {
    const SingleThreadedLibraries single_threaded;
    std::vector<T> scratch(token_attention_scratch_elems(shape.width, threads), std::numeric_limits<T>::quiet_NaN());
    const Team team(threads);
    const AttentionInputs<T> inputs{view<const T>(q), view<const T>(k), view<const T>(v), mask, absent, dropout};
    begin_attention(view<T>(out), std::span(lse));
    for (const AttentionPattern& pattern : patterns) {
      attend(inputs, pattern, view<T>(out), std::span(lse), std::span(scratch), team);
    }
    for (const AttentionPattern& pattern : patterns) {
      attend_backward(inputs, pattern,
                      {view<const T>(out), std::span<const T>(lse), view<const T>(dout), std::span<const T>(dlse)},
                      {view<T>(dq), view<T>(dk), view<T>(dv)}, std::span(scratch), team);
    }
  }
  double error(const DenseAttention& dense) const {
    const auto positions = positions_to(shape.tokens);
    const auto difference = [&](const std::vector<T>& got, const WholeTensor& want) {
      return largest_difference(Doubles(got.begin(), got.end()), want.part<double>(positions, 0, shape.heads, layout));
    };
    return std::max({difference(out, dense.output), difference(dq, dense.grad_queries), difference(dk, dense.grad_keys),
                     difference(dv, dense.grad_values),
                     largest_difference(Doubles(lse.begin(), lse.end()), dense.log_sum_exp)});
  }
};

DenseAttention dense_of(const HeadShape& s, const ScoreBias& bias, const Doubles& dlse = {}) {
  return dense_attention(WholeTensor(s, 1), WholeTensor(s, 2), WholeTensor(s, 3), bias, WholeTensor(s, 4), dlse);
}

TEST(TokenAttention, EqualsDenseAttentionUnderEveryMaskAndPairOfMasks) {
  const HeadShape shape{3, 13, 2, 3};
  for (const std::vector<MaskKind>& kinds : all_mask_kinds()) {
    const TestMask mask(kinds, shape.batch, shape.tokens);
    const DenseAttention dense = dense_of(shape, mask.score_bias());
    for (const TokenLayout layout : {TokenLayout::kBatchFirst, TokenLayout::kSequenceFirst}) {
      OneRank<double> all(shape, layout);
      all.run(mask.mask(), {pattern_of({{0, 13, 0}}, {{0, 13, 0}})});
      EXPECT_LE(all.error(dense), 1e-12) << mask_name(kinds);
      // Keys in three calls, of which one has every second key from the fourth on; queries in two runs.
      OneRank<double> cut(shape, layout);
      cut.run(mask.mask(),
              {pattern_of({{7, 6, 7}, {0, 7, 0}}, {{4, 4, 4, 2, 2}, {0, 2, 0}}),
               pattern_of({{0, 13, 0}}, {{3, 5, 3, 2, 2}}), pattern_of({{0, 13, 0}}, {{2, 1, 2}, {12, 1, 12}})});
      EXPECT_LE(cut.error(dense), 1e-12) << mask_name(kinds);
    }
  }
}

TEST(TokenAttention, EqualsDenseAttentionAboutTheSizesOfTiles) {
  for (const std::int64_t length : {1, 63, 64, 65, 256, 257, 300}) {
    for (const MaskKind kind : {MaskKind::kNone, MaskKind::kCausal, MaskKind::kDocuments}) {
      const HeadShape shape{2, length, 2, 5};
      const TestMask mask({kind}, 2, length);
      const DenseAttention dense = dense_of(shape, mask.score_bias());
      const std::vector<AttentionPattern> all = {pattern_of({{0, length, 0}}, {{0, length, 0}})};
      OneRank<double> one(shape, TokenLayout::kBatchFirst);
      one.run(mask.mask(), all);
      EXPECT_LE(one.error(dense), 1e-12) << length;
      OneRank<float> narrow(shape, TokenLayout::kBatchFirst);
      narrow.run(mask.mask(), all);
      EXPECT_LE(narrow.error(dense), 2e-5) << length;
      for (const int threads : {2, 3}) {
        OneRank<double> many(shape, TokenLayout::kBatchFirst);
        many.run(mask.mask(), all, {}, threads);
        EXPECT_EQ(many.out, one.out);
        EXPECT_EQ(many.dk, one.dk);
      }
    }
  }
}

// The log-sum-exp is the one without dropout, and its gradient reaches the scores of dropped keys.
TEST(TokenAttention, DropsTheProbabilitiesOfDenseAttention) {
  for (const std::int64_t length : {1, 64, 65, 257, 300}) {
    const HeadShape shape{2, length, 2, 5};
    const TestMask mask({MaskKind::kCausal, MaskKind::kKeysAllowed}, 2, length);
    const DropoutMask dropout = dropout_of_keys(0.3);
    const std::vector<AttentionPattern> all = {pattern_of({{0, length, 0}}, {{0, length, 0}})};
    OneRank<double> one(shape, TokenLayout::kBatchFirst);
    one.dlse = formula_numbers(5, one.lse.size());
    const DenseAttention dense =
        dense_attention(WholeTensor(shape, 1), WholeTensor(shape, 2), WholeTensor(shape, 3), mask.score_bias(),
                        WholeTensor(shape, 4), one.dlse, std::bind_front(factor_of_key, dropout));
    one.run(mask.mask(), all, {}, 1, dropout);
    EXPECT_LE(one.error(dense), 1e-12) << length;
    OneRank<float> narrow(shape, TokenLayout::kBatchFirst);
    narrow.dlse.assign(one.dlse.begin(), one.dlse.end());
    narrow.run(mask.mask(), all, {}, 1, dropout);
    EXPECT_LE(narrow.error(dense), 2e-5) << length;
    OneRank<double> many(shape, TokenLayout::kBatchFirst);
    many.dlse = one.dlse;
    many.run(mask.mask(), all, {}, 3, dropout);
    EXPECT_EQ(many.out, one.out);
    EXPECT_EQ(many.dk, one.dk);
  }
}

TEST(TokenAttention, HeadsHaveBlocksOfTheirOwn) {
  const HeadShape shape{2, 11, 3, 4};
  // Head h: queries and keys of residue h modulo 3 among the first 7 tokens, and of the others.
  AttentionPattern pattern(3);
  for (std::int64_t h = 0; h < 3; ++h) {
    const std::int64_t low = (7 - h + 2) / 3;
    const std::int64_t high = (4 - h + 2) / 3;
    pattern[static_cast<std::size_t>(h)] = {{{{h, low, h, 3, 3}}, {{h, low, h, 3, 3}}},
                                            {{{7 + h, high, 7 + h, 3, 3}}, {{7 + h, high, 7 + h, 3, 3}}}};
  }
  const auto see = [](std::int64_t h, std::int64_t q, std::int64_t k) {
    const std::int64_t begin = q < 7 ? 0 : 7;
    return (q < 7) == (k < 7) && (q - begin) % 3 == h && (k - begin) % 3 == h;
  };
  OneRank<double> one(shape, TokenLayout::kSequenceFirst);
  one.run(AttentionMask(Causality::kCausal), {pattern});
  const DenseAttention dense = dense_of(shape, [&](std::int64_t, std::int64_t h, std::int64_t q, std::int64_t k) {
    return k <= q && see(h, q, k) ? 0 : -kInfinity;
  });
  EXPECT_LE(one.error(dense), 1e-12);
}

TEST(TokenAttention, AbsentKeysLeaveTheSoftmax) {
  const HeadShape shape{2, 9, 3, 2};
  std::vector<std::uint8_t> absent(9 * 2 * 3);
  for (std::size_t i = 0; i < absent.size(); ++i) absent[i] = formula_number(9, i) < 0.1 ? 1 : 0;
  const auto is_absent = [&](std::int64_t b, std::int64_t h, std::int64_t k) {
    return absent[static_cast<std::size_t>((k * 2 + b) * 3 + h)] != 0;
  };
  const TestMask mask({MaskKind::kCausal}, 2, 9);
  OneRank<double> one(shape, TokenLayout::kBatchFirst);
  one.run(mask.mask(), {pattern_of({{0, 9, 0}}, {{0, 9, 0}})}, absent);
  const DenseAttention dense = dense_of(shape, [&](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) {
    return is_absent(b, h, k) ? -kInfinity : mask.bias(b, q, k);
  });
  EXPECT_LE(one.error(dense), 1e-12);
  OneRank<double> none(shape, TokenLayout::kBatchFirst);
  none.run(mask.mask(), {pattern_of({{0, 9, 0}}, {{0, 9, 0}})}, std::vector<std::uint8_t>(absent.size(), 1));
  EXPECT_EQ(none.out, Doubles(shape.elems(), 0));
  EXPECT_EQ(none.lse, Doubles(shape.elems() / 2, -kInfinity));
  EXPECT_EQ(none.dq, Doubles(shape.elems(), 0));
  EXPECT_EQ(none.dk, Doubles(shape.elems(), 0));
  EXPECT_EQ(none.dv, Doubles(shape.elems(), 0));
}

// A query of zeros gives each key the score 0, so with only the first key the log-sum-exp is 0.
TEST(TokenAttention, ALogSumExpOfZeroIsNoMark) {
  const HeadShape shape{1, 3, 1, 2};
  OneRank<double> one(shape, TokenLayout::kBatchFirst);
  std::ranges::fill(one.q, 0.0);
  one.run(AttentionMask(Causality::kAny), {pattern_of({{0, 3, 0}}, {{0, 1, 0}}), pattern_of({{0, 3, 0}}, {{1, 2, 1}})});
  for (std::size_t d = 0; d < 2; ++d) EXPECT_NEAR(one.out[d], (one.v[d] + one.v[2 + d] + one.v[4 + d]) / 3, 1e-15);
  EXPECT_NEAR(one.lse[0], std::log(3), 1e-15);
}

// The loss is sum(dout out) + sum(dlse lse) over visible rows; its gradient comes from finite differences of dense
// attention.
TEST(TokenAttention, GradientsAreFiniteDifferences) {
  const HeadShape shape{1, 6, 2, 3};
  const TestMask mask({MaskKind::kCausal, MaskKind::kPairsAdded}, 1, 6);
  OneRank<double> one(shape, TokenLayout::kBatchFirst);
  one.dlse = formula_numbers(5, one.lse.size());
  one.run(mask.mask(), {pattern_of({{0, 6, 0}}, {{0, 4, 0}}), pattern_of({{0, 6, 0}}, {{4, 2, 4}})});
  std::vector<WholeTensor> inputs = {WholeTensor(shape, 1), WholeTensor(shape, 2), WholeTensor(shape, 3)};
  const WholeTensor dout(shape, 4);
  EXPECT_LE(one.error(dense_of(shape, mask.score_bias(), one.dlse)), 1e-12);
  const auto loss = [&] {
    const DenseAttention dense = dense_attention(inputs[0], inputs[1], inputs[2], mask.score_bias(), dout);
    double sum = 0;
    for (std::size_t i = 0; i < dout.elems.size(); ++i) sum += dense.output.elems[i] * dout.elems[i];
    for (std::size_t i = 0; i < one.dlse.size(); ++i) {
      if (dense.log_sum_exp[i] != -kInfinity) sum += dense.log_sum_exp[i] * one.dlse[i];
    }
    return sum;
  };
  const Doubles* const gradients[] = {&one.dq, &one.dk, &one.dv};
  for (std::size_t tensor = 0; tensor < 3; ++tensor) {
    for (std::size_t i = 0; i < shape.elems(); ++i) {
      double& x = inputs[tensor].elems[i];
      const double at = x;
      x = at + 1e-5;
      const double above = loss();
      x = at - 1e-5;
      const double below = loss();
      x = at;
      EXPECT_NEAR((*gradients[tensor])[i], (above - below) / 2e-5, 1e-7);
    }
  }
}

TEST(MergedAttention, HoldsForAnyDifferenceOfTheLogSumExps) {
  const HeadShape shape{1, 1, 1, 1};
  const auto merged = [&](double o, double l, double p, double m) {
    Doubles out = {o};
    Doubles lse = {l};
    const Doubles other = {p};
    const Doubles other_lse = {m};
    merge_attention(view_of("other", std::span<const double>(other), shape, TokenLayout::kBatchFirst),
                    std::span<const double>(other_lse), view_of("out", std::span(out), shape, TokenLayout::kBatchFirst),
                    std::span(lse));
    return std::pair(out[0], lse[0]);
  };
  EXPECT_EQ(merged(2, 1000, 5, 0), std::pair(2.0, 1000.0));
  EXPECT_EQ(merged(2, -1000, 5, 0), std::pair(5.0, 0.0));
  EXPECT_EQ(merged(0, -kInfinity, 5, 3), std::pair(5.0, 3.0));
  EXPECT_EQ(merged(5, 3, 0, -kInfinity), std::pair(5.0, 3.0));
  EXPECT_EQ(merged(0, -kInfinity, 0, -kInfinity), std::pair(0.0, -kInfinity));
  const auto [out, lse] = merged(2, 0, 5, 0);  // a log-sum-exp of 0 is no mark
  EXPECT_NEAR(out, 3.5, 1e-15);
  EXPECT_NEAR(lse, std::log(2), 1e-15);
}

template <class F>
std::string config_error(const F& f) {
  try {
    f();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HeadViews, AWrongShapeNamesItsAxis) {
  Doubles elems(2 * 5 * 4 * 3);
  const HeadShape want{2, 5, 4, 3};
  const auto error = [&](std::array<std::int64_t, 4> extents, TokenLayout layout) {
    return config_error([&] { view_of("keys", std::span(elems), extents, want, layout); });
  };
  EXPECT_EQ(error({2, 5, 4, 3}, TokenLayout::kBatchFirst), "no error");
  EXPECT_EQ(error({2, 6, 4, 3}, TokenLayout::kBatchFirst),
            "keys: axis 1 (tokens): got 6, want 5 of [batch 2, tokens 5, heads 4, width 3]");
  EXPECT_EQ(error({5, 2, 3, 3}, TokenLayout::kSequenceFirst),
            "keys: axis 2 (heads): got 3, want 4 of [tokens 5, batch 2, heads 4, width 3]");
  EXPECT_THAT(error({5, 2, 4, 3}, TokenLayout::kBatchFirst),
              HasSubstr("the shape is that of the layout sequence first"));
  EXPECT_THAT(config_error([&] {
                view_of("keys", std::span(elems).first(0), {2, 5, 4, 0}, {2, 5, 4, 0}, TokenLayout::kBatchFirst);
              }),
              HasSubstr("axis 3 (width): got 0, want at least 1"));
  EXPECT_THAT(config_error([&] { view_of("keys", std::span(elems).first(7), want, TokenLayout::kBatchFirst); }),
              HasSubstr("keys: got 7 elements, want 120"));
}

TEST(AttentionMasks, WrongArraysNameTheirAxes) {
  const std::vector<std::uint8_t> ones(15, 1);
  const auto error = [&](const MaskArray& array) {
    return config_error([&] { AttentionMask(Causality::kAny, {3, 5, 5}, {array}); });
  };
  const std::span<const std::uint8_t> keys(ones);
  EXPECT_EQ(error({MaskArray::Axes::kKeys, keys}), "no error");
  EXPECT_THAT(error({MaskArray::Axes::kKeys, keys.first(14)}),
              HasSubstr("key padding mask (array 0): got 14 elements, want 15 = [batch, keys] of 3 sequences"));
  EXPECT_THAT(error({MaskArray::Axes::kQueriesKeys, keys}), HasSubstr("2-D mask (array 0): got 15 elements, want 25"));
  EXPECT_THAT(error({MaskArray::Axes::kBatchQueriesKeys, keys}), HasSubstr("want 75 = [batch, queries, keys]"));
  std::vector<float> added(15, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(error({MaskArray::Axes::kKeys, std::span<const float>(added)}), "no error");
  added[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(error({MaskArray::Axes::kKeys, std::span<const float>(added)}), HasSubstr("element 3: got NaN"));
  added[3] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(error({MaskArray::Axes::kKeys, std::span<const float>(added)}), HasSubstr("got infinity"));
  const std::vector<std::int32_t> integers(15);
  const std::vector<std::int32_t> documents(14);
  EXPECT_THAT(error({MaskArray::Axes::kKeys, std::span<const std::int32_t>(integers)}), HasSubstr("type int32"));
  EXPECT_THAT(config_error([&] {
                AttentionMask(Causality::kAny, {3, 5, 5}, {}, documents);
              }),
              HasSubstr("documents: got 14 elements, want 15"));
  EXPECT_THAT(config_error([&] {
                AttentionMask(Causality::kAny, {3, 4, 5}, {}, documents);
              }),
              HasSubstr("documents: got 4 queries and 5 keys"));
  EXPECT_THAT(config_error([&] {
                AttentionMask(Causality::kAny, {3, 5, 5}, {{MaskArray::Axes::kKeys, keys}}).check_covers(3, 6);
              }),
              HasSubstr("want 3 sequences of 6 tokens"));
}

TEST(AttentionMasks, HideThePairsOfDocumentsThatDoNotMeet) {
  const std::vector<std::int32_t> documents = {0, 0, 1, 2, 2, -1, 0, -1, 1, 1, 1, 1, 5, 5};
  const AttentionMask mask(Causality::kAny, {2, 7, 7}, {}, documents);
  const auto hides = [&](std::int64_t b, PositionSteps q, std::int64_t q_count, PositionSteps k, std::int64_t k_count) {
    return mask.hides(b, q, q_count, k, k_count);
  };
  EXPECT_TRUE(hides(0, {0, 1}, 2, {2, 1}, 4));
  EXPECT_TRUE(hides(0, {2, 1}, 4, {0, 1}, 2));
  EXPECT_FALSE(hides(0, {0, 1}, 2, {2, 1}, 5));  // the last one is of document 0 again
  EXPECT_TRUE(hides(0, {0, 2}, 2, {3, 1}, 2));   // 0 and 1 against 2
  EXPECT_FALSE(hides(0, {0, 2}, 3, {3, 1}, 2));  // 0, 1 and 2 against 2
  EXPECT_TRUE(hides(0, {0, 1}, 7, {5, 1}, 1));   // only padding
  EXPECT_TRUE(hides(1, {1, 1}, 4, {5, 1}, 2));
  EXPECT_FALSE(AttentionMask(Causality::kCausal).hides(0, {0, 1}, 1, {1, 1}, 1));
}

TEST(AttentionMasks, CombineIntoOneArray) {
  for (const std::vector<MaskKind>& kinds : all_mask_kinds()) {
    const TestMask mask(kinds, 2, 6);
    const std::vector<std::int64_t> queries = {4, 1, 5};
    const std::vector<std::int64_t> keys = {0, 5, 2, 3};
    const Doubles combined = combined_mask<double>(mask.mask(), 2, queries, keys);
    Doubles want;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (const std::int64_t q : queries) {
        for (const std::int64_t k : keys) want.push_back(mask.bias(b, q, k));
      }
    }
    EXPECT_EQ(combined, want) << mask_name(kinds);
  }
}

}  // namespace
}  // namespace droptest::models::token_attention_test
