// SPDX-License-Identifier: Apache-2.0
// Attention over the tokens of several ranks equals attention on one.
#include "models/attention/sequence_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/run_ranks.h"
#include "sim/error.h"
#include "tests/models/attention/sequence_cases.h"
#include "tests/sanitizers.h"

namespace droptest::models::sequence_attention_test {
namespace {

using ::testing::HasSubstr;

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

TEST(SequenceAttention, RanksTogetherSaveEachElementOnce) {
  const Whole whole({3, 13, 7, kWidth}, {MaskKind::kCausal});
  for (const SequenceFactors& factors : factors_of(4)) {
    const SequenceParts parts = SequenceParts::even(13, 4);
    std::atomic<std::uint64_t> elems = 0;
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
      elems += saved.queries.size() + saved.keys.size() + saved.values.size() + saved.output.size() +
               saved.log_sum_exp.size();
      EXPECT_TRUE(saved.absent.empty());
    });
    EXPECT_EQ(elems, 4 * whole.shape.elems() + whole.shape.elems() / kWidth);
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
  // A query at position p sees p + 1 keys.
  const auto pairs = [](const SequenceParts& parts, int rank) {
    std::int64_t count = 0;
    for (const std::int64_t position : parts.positions(rank, 1)) count += position + 1;
    return count;
  };
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const std::int64_t length : {2, 4, 10}) {
      const std::int64_t all = 2 * ranks * length;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(2 * ranks * pairs(SequenceParts::zigzag(all, ranks), rank), all * (all + 1));
      }
      if (ranks > 1) {
        EXPECT_LT(2 * ranks * pairs(SequenceParts::even(all, ranks), 0), all * (all + 1));
      }
    }
  }
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
}  // namespace droptest::models::sequence_attention_test
