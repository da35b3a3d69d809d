// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/linear_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "models/ops/host_ops.h"
#include "tests/models/formula_model.h"

namespace droptest::models::linear_head_test {
namespace {

constexpr std::int64_t kRows = 11;
constexpr std::int64_t kWidth = 6;
constexpr int kVocabulary = 10;

struct Result {
  double loss = 0;
  std::vector<double> grad_wte;
  std::vector<double> grad_normalized;
};

/// The buffers of only a head, in vectors.
class HeadBuffers final : public BufferVisitor {
 public:
  void tensor(comm::Tensor& tensor, const char* /*name*/, comm::ElementType type, std::uint64_t elems,
              Lifetime /*lifetime*/) override {
    memory_.emplace_back(elems * comm::element_bytes(type));
    tensor = {type, memory_.back()};
    std::fill(memory_.back().begin(), memory_.back().end(), std::byte{0xFF});  // NaN
  }
  void tokens(TokenIds& tokens, const char* /*name*/, std::uint64_t count, Lifetime /*lifetime*/) override {
    memory_.emplace_back(count * sizeof(std::int32_t));
    tokens = {reinterpret_cast<std::int32_t*>(memory_.back().data()), count};
  }

 private:
  std::deque<std::vector<std::byte>> memory_;
};

/// Loss and gradients on rank 0 of `ranks`, with at most max_logits logits of a chunk.
Result run(int ranks, std::int64_t max_logits, GradientMode mode) {
  Result result;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    const Gpt2Config config{1, 32, 8, 12, kVocabulary};
    StageExtents extents = stage_extents(config, StageRange::whole(config), ranks, group.rank(), {1, kRows});
    extents.width = kWidth;
    const auto first = static_cast<std::uint64_t>(extents.vocabulary.first);
    std::vector<double> value(static_cast<std::size_t>(extents.largest_vocabulary * kWidth));
    for (std::size_t i = 0; i < static_cast<std::size_t>(extents.vocabulary.count * kWidth); ++i) {
      value[i] = mixed(1, first * kWidth + i);
    }
    std::vector<double> gradient(value.size(), 0.25);
    const Weight wte{std::span<const double>(value), std::span<const double>(value), std::span<double>(gradient)};
    const std::unique_ptr<Ops> ops =
        make_host_ops({.type = comm::ElementType::kFloat64, .threads = 2, .max_logits = max_logits}, group);
    StageBuffers buffers;
    HeadBuffers memory;
    visit_buffers(buffers, extents, ops->form(), Keep::kForBackward, {}, {}, memory);
    for (std::uint64_t i = 0; i < kRows * kWidth; ++i) buffers.final_norm.normalized.as<double>()[i] = mixed(2, i);
    ops->take_tokens(formula_tokens(3, kRows, kVocabulary), buffers.targets);
    const LinearHead head(*ops, wte);
    head.forward(buffers);
    ops->sum_losses(buffers.losses, buffers.chunks.rows, kRows, GradientMode::kSet, Number::kEvaluation);
    head.forward_backward(buffers, 0.5 / kRows, mode);
    ops->join();
    ops->sum_losses(buffers.losses, buffers.chunks.rows, kRows, GradientMode::kSet, Number::kLosses);
    EXPECT_EQ(ops->numbers()[Number::kEvaluation], ops->numbers()[Number::kLosses])
        << "evaluation's loss is training's";
    const std::span<const double> grad_normalized = buffers.grad_normalized.as<double>();
    if (group.rank() == 0) {
      result = {ops->numbers()[Number::kLosses], gradient, {grad_normalized.begin(), grad_normalized.end()}};
    }
  });
  return result;
}

TEST(LinearHead, ChunksOfRowsGiveWhatAllRowsGive) {
  for (const int ranks : {1, 3}) {
    const Result whole = run(ranks, 1 << 20, GradientMode::kAdd);
    // One row at a time, chunks that do not divide the rows, and room for less than a row.
    for (const std::int64_t max_logits : {10, 40, 7 * 10, 1}) {
      const Result chunks = run(ranks, max_logits, GradientMode::kAdd);
      EXPECT_NEAR(chunks.loss, whole.loss, 1e-13);
      EXPECT_LE(relative_difference(chunks.grad_wte, whole.grad_wte), 1e-13);
      EXPECT_LE(relative_difference(chunks.grad_normalized, whole.grad_normalized), 1e-13);
    }
  }
}

TEST(LinearHead, SetsOrAddsTheEmbeddingsGradient) {
  for (const std::int64_t max_logits : {1 << 20, 40}) {
    const Result added = run(1, max_logits, GradientMode::kAdd);
    const Result set = run(1, max_logits, GradientMode::kSet);
    ASSERT_EQ(added.grad_wte.size(), set.grad_wte.size());
    for (std::size_t i = 0; i < set.grad_wte.size(); ++i) EXPECT_NEAR(added.grad_wte[i], set.grad_wte[i] + 0.25, 1e-15);
  }
}

TEST(LinearHead, EveryRankReducesAsOftenAsTheOthersHoweverUnevenItsPart) {
  // 10 tokens on 3 ranks: 4, 4 and 2 columns. A rank that cut rows by its own columns would wait for ever.
  const Result got = run(3, 8, GradientMode::kAdd);
  EXPECT_TRUE(std::isfinite(got.loss));
}

}  // namespace
}  // namespace droptest::models::linear_head_test
