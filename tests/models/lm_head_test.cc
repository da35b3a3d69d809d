// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/lm_head.h"

#include <gtest/gtest.h>

#include "tests/models/formula_model.h"

namespace droptest::models {
namespace {

constexpr std::int64_t kRows = 11;
constexpr std::int64_t kWidth = 6;
constexpr int kVocabulary = 10;

enum class Call { kForwardThenBackward, kForwardBackward };

struct Result {
  double loss = 0;
  std::vector<double> grad_wte;
  std::vector<double> grad_normalized;
};

/// Loss and gradients on rank 0 of `ranks`, with at most max_logits logits of a chunk.
Result run(int ranks, std::int64_t max_logits, Call call, GradientMode mode) {
  Result result;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    const Gpt2Part part = gpt2_part({1, 32, 8, 12, kVocabulary}, ranks, group.rank());
    const std::uint64_t rows_of_wte = part.vocabulary.count + part.vocabulary_padding;
    std::vector<double> value(rows_of_wte * kWidth);
    for (std::size_t i = 0; i < part.vocabulary.count * kWidth; ++i)
      value[i] = mixed(1, part.vocabulary.first * kWidth + i);
    std::vector<double> gradient(value.size(), 0.25);
    Parameter<double> wte{"wte.weight", "embedding", {rows_of_wte, kWidth}, Placement::kSharded, Decay::kDecays,
                          value,        gradient};
    std::vector<double> normalized;
    for (std::uint64_t i = 0; i < kRows * kWidth; ++i) normalized.push_back(mixed(2, i));
    const std::vector<std::int32_t> targets = formula_tokens(3, kRows, kVocabulary);
    const Execution execution{group, 2, mode};
    LmHead<double> head(
        wte, {static_cast<std::int64_t>(part.vocabulary.first), static_cast<std::int64_t>(part.vocabulary.count)},
        static_cast<std::int64_t>(rows_of_wte), execution, max_logits);
    std::vector<double> grad_normalized(normalized.size(), std::nan(""));
    double loss = 0;
    if (call == Call::kForwardBackward) {
      loss = head.forward_backward(normalized, targets, 0.5, grad_normalized);
    } else {
      loss = head.forward(normalized, targets);
      head.backward(normalized, targets, 0.5, grad_normalized);
    }
    if (group.rank() == 0) result = {loss, gradient, grad_normalized};
  });
  return result;
}

TEST(LmHead, ChunksOfRowsGiveWhatAllRowsGive) {
  for (const int ranks : {1, 3}) {
    const Result whole = run(ranks, 1 << 20, Call::kForwardBackward, GradientMode::kAdd);
    // One row at a time, chunks that do not divide the rows, and room for less than a row.
    for (const std::int64_t max_logits : {10, 40, 7 * 10, 1}) {
      const Result chunks = run(ranks, max_logits, Call::kForwardBackward, GradientMode::kAdd);
      EXPECT_NEAR(chunks.loss, whole.loss, 1e-13);
      EXPECT_LE(relative_difference(chunks.grad_wte, whole.grad_wte), 1e-13);
      EXPECT_LE(relative_difference(chunks.grad_normalized, whole.grad_normalized), 1e-13);
    }
  }
}

TEST(LmHead, BackwardAfterForwardHasTheBitsOfBothInOne) {
  for (const int ranks : {1, 3}) {
    for (const std::int64_t max_logits : {1 << 20, 40, 10}) {
      const Result one = run(ranks, max_logits, Call::kForwardBackward, GradientMode::kAdd);
      const Result two = run(ranks, max_logits, Call::kForwardThenBackward, GradientMode::kAdd);
      EXPECT_EQ(two.loss, one.loss);
      EXPECT_EQ(two.grad_wte, one.grad_wte);
      EXPECT_EQ(two.grad_normalized, one.grad_normalized);
    }
  }
}

TEST(LmHead, SetsOrAddsTheEmbeddingsGradient) {
  for (const std::int64_t max_logits : {1 << 20, 40}) {
    const Result added = run(1, max_logits, Call::kForwardBackward, GradientMode::kAdd);
    const Result set = run(1, max_logits, Call::kForwardBackward, GradientMode::kSet);
    ASSERT_EQ(added.grad_wte.size(), set.grad_wte.size());
    for (std::size_t i = 0; i < set.grad_wte.size(); ++i) EXPECT_NEAR(added.grad_wte[i], set.grad_wte[i] + 0.25, 1e-15);
  }
}

TEST(LmHead, EveryRankReducesAsOftenAsTheOthersHoweverUnevenItsPart) {
  // 10 tokens on 3 ranks: 4, 4 and 2 columns. A rank that cut rows by its own columns would wait for ever.
  const Result got = run(3, 8, Call::kForwardThenBackward, GradientMode::kAdd);
  EXPECT_TRUE(std::isfinite(got.loss));
}

}  // namespace
}  // namespace droptest::models
