// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <numeric>

#include "models/ops/host_ops.h"
#include "tests/models/formula_model.h"

namespace droptest::models::parallel_cross_entropy_test {
namespace {

struct Result {
  std::vector<double> losses;                  ///< losses of each rank
  std::vector<std::vector<double>> gradients;  ///< gradients of each rank, [rows, its columns]
};

/// Cross-entropy of whole logits [rows, vocabulary] on ranks that have the columns gpt2_part gives them.
template <class T>
Result on_ranks(const std::vector<double>& logits, const std::vector<std::int32_t>& targets, int vocabulary,
                int ranks) {
  Result result;
  result.losses.resize(static_cast<std::size_t>(ranks));
  result.gradients.resize(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    const IndexRange part = gpt2_part({1, 32, 8, 12, vocabulary}, ranks, group.rank()).vocabulary;
    std::vector<T> own;
    for (std::size_t row = 0; row < targets.size(); ++row) {
      for (std::uint64_t column = 0; column < part.count; ++column) {
        own.push_back(static_cast<T>(logits[row * static_cast<std::size_t>(vocabulary) + part.first + column]));
      }
    }
    const std::unique_ptr<Ops> ops = make_host_ops({comm::element_type_of<T>()}, group);
    std::vector<std::vector<T>> statistics(3, std::vector<T>(targets.size()));
    std::vector<double> losses(targets.size());
    std::vector<std::int32_t> tokens = targets;
    const auto rows = static_cast<std::int64_t>(targets.size());
    const LogitBlock block{std::span<T>(own),
                           rows,
                           static_cast<std::int64_t>(part.count),
                           {static_cast<std::int64_t>(part.first), static_cast<std::int64_t>(part.count)},
                           {tokens.data(), tokens.size()},
                           std::span<T>(statistics[0]),
                           std::span<T>(statistics[1]),
                           std::span<T>(statistics[2]),
                           std::span<double>(losses)};
    const auto rank = static_cast<std::size_t>(group.rank());
    const auto reduce = [&](const comm::Tensor& values, comm::ReduceOp op) {
      ops->begin_all_reduce(values, op, {});
      ops->join();
    };
    ops->row_maxima(block);
    reduce(block.largest, comm::ReduceOp::kMax);
    ops->exponential_sums(block);
    reduce(block.sums, comm::ReduceOp::kSum);
    reduce(block.predicted, comm::ReduceOp::kSum);
    ops->losses_of_sums(block);
    ops->sum_losses(block.losses, rows, static_cast<double>(targets.size()), GradientMode::kSet, Number::kLosses);
    result.losses[rank] = ops->numbers()[Number::kLosses];
    ops->logits_to_gradient(block);
    result.gradients[rank].assign(own.begin(), own.end());
  });
  return result;
}

TEST(ParallelCrossEntropy, EqualsTheDenseFormulaAtEveryPartitionEdge) {
  // 10 tokens over 3 ranks are padded to 12: parts 0..3, 4..7, 8..9.
  const int vocabulary = 10;
  const std::vector<std::int32_t> targets = {0, 3, 4, 7, 8, 9};
  std::vector<double> logits;
  for (std::size_t i = 0; i < targets.size() * vocabulary; ++i) logits.push_back(8 * mixed(0, i));
  double expected = 0;
  std::vector<double> softmax;
  for (std::size_t row = 0; row < targets.size(); ++row) {
    double sum = 0;
    for (int j = 0; j < vocabulary; ++j) sum += std::exp(logits[row * vocabulary + j]);
    for (int j = 0; j < vocabulary; ++j) softmax.push_back(std::exp(logits[row * vocabulary + j]) / sum);
    expected += std::log(sum) - logits[row * vocabulary + targets[row]];
  }
  expected /= static_cast<double>(targets.size());
  for (const int ranks : {1, 2, 3, 5}) {
    const Result got = on_ranks<double>(logits, targets, vocabulary, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_NEAR(got.losses[rank] / expected, 1, 1e-13);
      EXPECT_EQ(got.losses[rank], got.losses[0]);
      const IndexRange part = gpt2_part({1, 32, 8, 12, vocabulary}, ranks, rank).vocabulary;
      ASSERT_EQ(got.gradients[rank].size(), targets.size() * part.count);
      for (std::size_t row = 0; row < targets.size(); ++row) {
        for (std::uint64_t j = 0; j < part.count; ++j) {
          const std::uint64_t token = part.first + j;
          const double onehot = token == static_cast<std::uint64_t>(targets[row]) ? 1 : 0;
          EXPECT_NEAR(got.gradients[rank][row * part.count + j], softmax[row * vocabulary + token] - onehot, 1e-14);
        }
      }
    }
  }
}

TEST(ParallelCrossEntropy, ExtremeLogitsGiveExactFiniteLosses) {
  // Row 0: the target is 1e4 below the top. Row 1: it is the top. Row 2: far below zero everywhere.
  const std::vector<double> logits = {0, 1e4, -1e4, -1e4, 0, 1e4, -1e4, -1e4, -1e4, -1e4, -1e4, -1e4};
  for (const int ranks : {1, 2, 4}) {
    EXPECT_EQ(on_ranks<float>({logits.begin(), logits.begin() + 4}, {0}, 4, ranks).losses[0], 1e4);
    EXPECT_EQ(on_ranks<float>({logits.begin() + 4, logits.begin() + 8}, {1}, 4, ranks).losses[0], 0);
    const Result flat = on_ranks<float>({logits.begin() + 8, logits.end()}, {3}, 4, ranks);
    EXPECT_NEAR(flat.losses[0], std::log(4.0), 1e-7);
    double sum = 0;
    for (const auto& part : flat.gradients) sum = std::accumulate(part.begin(), part.end(), sum);
    EXPECT_NEAR(sum, 0, 1e-6);
  }
}

TEST(ParallelCrossEntropy, ARankOfPaddingOnlyChangesNothing) {
  // 5 tokens over 4 ranks are padded to 8: the last rank has no column.
  std::vector<double> logits;
  for (std::size_t i = 0; i < 10; ++i) logits.push_back(4 * mixed(3, i));
  const double one = on_ranks<double>(logits, {4, 0}, 5, 1).losses[0];
  const Result four = on_ranks<double>(logits, {4, 0}, 5, 4);
  EXPECT_NEAR(four.losses[3], one, 1e-14);
  EXPECT_TRUE(four.gradients[3].empty());
}

TEST(ParallelCrossEntropy, NotANumberStaysOne) {
  EXPECT_TRUE(std::isnan(on_ranks<float>({0, std::nan(""), 1, 2}, {0}, 4, 2).losses[1]));
}

}  // namespace
}  // namespace droptest::models::parallel_cross_entropy_test
