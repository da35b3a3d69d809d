// SPDX-License-Identifier: Apache-2.0
// A model cut over ranks is the model in one piece; and the derivative it computes is the derivative of its loss.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/models/formula_model.h"

namespace droptest::models::tensor_parallel_test {
namespace {

struct Case {
  const char* name;
  Gpt2Config config;
  int ranks;
};

void PrintTo(const Case& item, std::ostream* out) { *out << item.name; }

// 97 tokens are padded to 98, 99 and 100; 5 tokens over 4 ranks leave one rank with nothing but padding. A width of 30
// over 3 and 4 ranks gives uneven hidden columns as well.
const std::vector<Case> kCases = {
    {"two", {2, 32, 4, 12, 97}, 2},
    {"three_uneven_heads", {2, 32, 4, 12, 97}, 3},
    {"four", {2, 32, 4, 12, 97}, 4},
    {"five_heads_over_three", {2, 30, 5, 12, 97}, 3},
    {"five_heads_over_four", {1, 30, 5, 12, 97}, 4},
    {"mostly_padding", {1, 32, 4, 12, 5}, 4},
};

constexpr int kBatch = 3;
constexpr int kLength = 11;

template <class T>
void expect_equal_to_one_rank(const Case& item, double bound) {
  const Pass one = formula_pass<T>(item.config, 1, 1, kBatch, kLength);
  const Pass many = formula_pass<T>(item.config, item.ranks, 1, kBatch, kLength);
  EXPECT_NEAR(many.loss / one.loss, 1, bound / 5);
  EXPECT_NEAR(many.norm / one.norm, 1, bound);
  ASSERT_EQ(many.gradients.size(), one.gradients.size());
  for (const auto& tensor : one.gradients) {
    EXPECT_LE(relative_difference(many.gradients.at(tensor.first), tensor.second), bound) << tensor.first;
  }
  // Every rank got the same sums, so replicated results have the same bits on all ranks.
  for (int rank = 1; rank < item.ranks; ++rank) {
    EXPECT_EQ(many.losses[rank], many.losses[0]) << "rank " << rank;
    EXPECT_EQ(many.replicated[rank], many.replicated[0]) << "rank " << rank;
  }
}

class TensorParallel : public testing::TestWithParam<Case> {};

// Measured on such models: 1.3e-15 per tensor in double, 7e-7 in float (rounding in another order).
TEST_P(TensorParallel, EqualsOneRankInDouble) { expect_equal_to_one_rank<double>(GetParam(), 1e-12); }
TEST_P(TensorParallel, EqualsOneRankInFloat) { expect_equal_to_one_rank<float>(GetParam(), 1e-5); }

INSTANTIATE_TEST_SUITE_P(Shapes, TensorParallel, testing::ValuesIn(kCases),
                         [](const auto& shape) { return std::string(shape.param.name); });

/// Loss of the model whose weights are moved by `distance` along a fixed random direction, and the directional
/// derivative that backward claims, summed over all ranks.
struct Moved {
  double loss = 0;
  double slope = 0;
};

Moved moved(const Gpt2Config& config, int ranks, double distance) {
  const auto tokens = formula_tokens(0, kBatch * kLength, config.vocabulary);
  const auto targets = formula_tokens(1, kBatch * kLength, config.vocabulary);
  Moved result;
  std::mutex mutex;
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<double> model(config, group, 1);
    set_formula_weights(model, group);
    const auto tensors = gpt2_tensors(config, group.world_size(), group.rank());
    const auto for_each_direction = [&](const auto& body) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        tensors[i].slice.for_each_run([&](std::uint64_t full, std::uint64_t local, std::uint64_t count) {
          for (std::uint64_t k = 0; k < count; ++k) body(model.parameters()[i], local + k, mixed(500 + i, full + k));
        });
      }
    };
    for_each_direction([&](Parameter<double>& parameter, std::uint64_t at, double direction) {
      parameter.value[at] += distance * direction;
    });
    const double loss = model.forward_backward(tokens, targets, kBatch, kLength, 1.0);
    double slope = 0;
    for_each_direction([&](Parameter<double>& parameter, std::uint64_t at, double direction) {
      if (parameter.placement == Placement::kSharded || group.rank() == 0) slope += parameter.gradient[at] * direction;
    });
    const std::lock_guard lock(mutex);
    result.slope += slope;
    if (group.rank() == 0) result.loss = loss;
  });
  return result;
}

class DirectionalDerivative : public testing::TestWithParam<int> {};

TEST_P(DirectionalDerivative, OfAllParametersIsTheSlopeOfTheLoss) {
  // Rounding and curvature leave 9e-10 at this distance.
  const Gpt2Config config{2, 32, 4, 12, 97};
  const double distance = 1e-6;
  const double slope = moved(config, GetParam(), 0).slope;
  const double difference =
      (moved(config, GetParam(), distance).loss - moved(config, GetParam(), -distance).loss) / (2 * distance);
  EXPECT_GT(std::abs(slope), 1e-2);
  EXPECT_NEAR(slope / difference, 1, 1e-7);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DirectionalDerivative, testing::Values(1, 2, 3));

TEST(TensorParallelWeights, InitialWeightsDoNotDependOnTheNumberOfRanks) {
  const Gpt2Config config{2, 30, 5, 12, 97};
  const auto initial = [&](int ranks) {
    Tensors whole;
    std::mutex mutex;
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      HostGpt2<float> model(config, group, 1);
      model.initialize(7);
      const std::lock_guard lock(mutex);
      add_to_whole(model, group, &Parameter<float>::value, whole);
    });
    return whole;
  };
  const Tensors one = initial(1);
  EXPECT_EQ(initial(2), one);
  EXPECT_EQ(initial(3), one);
  EXPECT_EQ(initial(5), one);
}

TEST(TensorParallelWeights, QkvIsCutByHeadsOfEachThird) {
  // Two ranks, four heads of width 8: rank 1 has columns 16..31 of each of Q, K and V.
  const auto tensors = gpt2_tensors({1, 32, 4, 12, 97}, 2, 1);
  const auto& qkv = tensors[4];
  ASSERT_EQ(qkv.name, "h.0.attn.c_attn.weight");
  std::vector<std::uint64_t> first_row;
  qkv.slice.for_each_run([&](std::uint64_t full, std::uint64_t, std::uint64_t count) {
    for (std::uint64_t k = 0; k < count && full < 96; ++k) first_row.push_back(full + k);
  });
  std::vector<std::uint64_t> expected;
  for (std::uint64_t third = 0; third < 3; ++third) {
    for (std::uint64_t column = 16; column < 32; ++column) expected.push_back(32 * third + column);
  }
  EXPECT_EQ(first_row, expected);
}

TEST(TensorParallelWeights, XlDealsItsHeadsUnevenly) {
  const Gpt2Config xl = gpt2_preset("xl").config;
  std::vector<std::uint64_t> heads;
  std::uint64_t values = 0;
  for (int rank = 0; rank < 4; ++rank) {
    heads.push_back(gpt2_part(xl, 4, rank).heads.count);
    for (const Gpt2Tensor& tensor : gpt2_tensors(xl, 4, rank)) {
      if (tensor.placement == Placement::kReplicated && rank != 0) continue;
      values += tensor.slice.local_elems() -
                tensor.slice.padding * tensor.slice.full_shape[1 % tensor.slice.full_shape.size()];
    }
  }
  EXPECT_EQ(heads, (std::vector<std::uint64_t>{7, 6, 6, 6}));
  EXPECT_EQ(values, parameter_count(xl));
}

}  // namespace
}  // namespace droptest::models::tensor_parallel_test
