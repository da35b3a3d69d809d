// SPDX-License-Identifier: Apache-2.0
// Embeddings on a device against their CPU twins.
#include "models/kernels/embedding.h"

#include "models/kernels/token_groups.h"
#include "tests/cuda/device_kernels.h"

namespace droptest::models::embedding_cuda_test {
namespace {

template <class E>
class EmbeddingCuda : public DeviceTest {};
TYPED_TEST_SUITE(EmbeddingCuda, DeviceElementTypes);

/// Tokens of which some are another rank's, one occurs often, and some of the range never.
std::vector<std::int32_t> some_tokens(std::int64_t count, TokenRange range) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    const double fraction = mixed(9, static_cast<std::uint64_t>(i)) + 0.5;
    const auto token = range.first - 2 + static_cast<std::int64_t>(fraction * static_cast<double>(range.count + 4));
    tokens.push_back(static_cast<std::int32_t>(i % 3 == 0 ? range.first + 1 : token));
  }
  return tokens;
}

TYPED_TEST(EmbeddingCuda, ForwardCopiesOwnRows) {
  using E = TypeParam;
  const TokenRange range{5, 11};
  for (const auto& [rows, width, start] : kRowsCases) {
    const std::vector<std::int32_t> tokens = some_tokens(rows, range);
    const auto table = random_elems<E>(1, range.count * width);
    std::vector<float> want(static_cast<std::size_t>(rows * width));
    embedding_forward<float>(tokens, range, as<float>(table), width, want, 1);
    DeviceArray<std::int32_t> device_tokens(tokens, this->stream());
    DeviceArray<E> device_table(table, this->stream(), start);
    DeviceArray<E> output = poisoned<E>(rows * width, this->stream(), start);
    embedding_forward<E>(device_tokens.read(), range, device_table.read(), width, output.elems(), this->stream());
    EXPECT_EQ(as<float>(output.values()), want) << rows << " x " << width;
  }
}

TYPED_TEST(EmbeddingCuda, AddsPositionsAndRoundsOnce) {
  using E = TypeParam;
  for (const auto& [rows, width, start] : kRowsCases) {
    for (const std::int64_t batch : {1, 3}) {
      const auto table = random_elems<E>(1, (rows + 1) * width);
      const auto values = random_elems<E>(2, batch * rows * width);
      std::vector<float> sums = as<float>(values);
      add_positions<float>(as<float>(table), batch, rows, width, sums, 1);
      std::vector<E> want;
      for (const float sum : sums) want.push_back(to_elem<E>(sum));
      DeviceArray<E> device_table(table, this->stream(), start);
      DeviceArray<E> device_values(values, this->stream(), start);
      add_positions<E>(device_table.read(), batch, rows, width, device_values.elems(), this->stream());
      EXPECT_EQ(bytes_of(device_values.values()), bytes_of(want)) << batch << " x " << rows << " x " << width;
    }
  }
}

TYPED_TEST(EmbeddingCuda, GradientOfPositionsHasTheHostsBits) {
  using E = TypeParam;
  for (const auto& [rows, width, start] : kRowsCases) {
    for (const std::int64_t batch : {0, 1, 5}) {
      const auto dy = random_elems<E>(1, batch * rows * width);
      const auto before = random_elems<float>(2, (rows + 2) * width);
      std::vector<float> want = before;
      positions_backward<float>(as<float>(dy), batch, rows, width, want, 1);
      DeviceArray<E> device_dy(dy, this->stream(), start);
      DeviceArray<float> grad(before, this->stream(), start);
      positions_backward<E>(device_dy.read(), batch, rows, width, grad.elems(), this->stream());
      EXPECT_EQ(grad.values(), want) << batch << " x " << rows << " x " << width;
    }
  }
}

TYPED_TEST(EmbeddingCuda, GradientAddsUpEachTokensRows) {
  using E = TypeParam;
  const TokenRange range{5, 11};
  for (const auto& [rows, width, start] : kRowsCases) {
    TokenGroups groups(range, static_cast<std::size_t>(rows) + 60);
    // A larger batch first: the tokens of that batch must not count later.
    for (const std::int64_t more : {60, 0}) {
      const std::vector<std::int32_t> tokens = some_tokens(rows + more, range);
      const auto dy = random_elems<E>(1, (rows + more) * width);
      const auto before = random_elems<float>(2, range.count * width);
      std::vector<double> want = as<double>(before);
      embedding_backward<double>(tokens, range, as<double>(dy), width, want, 1);
      DeviceArray<E> device_dy(dy, this->stream(), start);
      DeviceArray<float> grad(before, this->stream(), start);
      groups.group(tokens, this->stream());
      embedding_backward<E>(groups, device_dy.read(), width, grad.elems(), this->stream());
      // Sums of at most 100 numbers of size 1, in another order than the host's.
      expect_close(grad.values(), want, 100 * 100 * kRounding<float>);
    }
  }
}

TYPED_TEST(EmbeddingCuda, GradientOfTokensOfOtherRanksIsNothing) {
  using E = TypeParam;
  TokenGroups groups({100, 7}, 4);
  const std::vector<std::int32_t> tokens = {1, 2, 99, 107};
  groups.group(tokens, this->stream());
  DeviceArray<E> dy(random_elems<E>(1, 4 * 8), this->stream());
  const auto before = random_elems<float>(2, 7 * 8);
  DeviceArray<float> grad(before, this->stream());
  embedding_backward<E>(groups, dy.read(), 8, grad.elems(), this->stream());
  EXPECT_EQ(grad.values(), before);
  const std::vector<std::int32_t> too_many = {1, 2, 3, 4, 5};
  EXPECT_THROW(groups.group(too_many, this->stream()), CheckError);
  EXPECT_THROW(embedding_backward<E>(groups, dy.read(), 9, grad.elems(), this->stream()), CheckError);
}

class TokenGroupsCuda : public DeviceTest {};

// The host's part of the table of tokens is written again while nothing has run on the device yet.
TEST_F(TokenGroupsCuda, TokensAreGroupedAgainBeforeTheDeviceCameToThem) {
  TokenGroups groups({0, 4}, 3);
  const std::vector<std::int32_t> first = {0, 1, 1};
  const std::vector<std::int32_t> second = {2, 3, 3};
  DeviceArray<float> dy(std::vector<float>{1, 2, 4}, stream());
  DeviceArray<float> grad(std::vector<float>(4), stream());
  groups.group(first, stream());
  embedding_backward<float>(groups, dy.read(), 1, grad.elems(), stream());
  groups.group(second, stream());
  embedding_backward<float>(groups, dy.read(), 1, grad.elems(), stream());
  EXPECT_EQ(grad.values(), (std::vector<float>{1, 6, 1, 6}));
}

}  // namespace
}  // namespace droptest::models::embedding_cuda_test
