// SPDX-License-Identifier: Apache-2.0
// Cross-entropy on a device against its CPU twin in double.
#include "models/kernels/cross_entropy.h"

#include "tests/cuda/device_kernels.h"

namespace droptest::models::cross_entropy_cuda_test {
namespace {

template <class E>
class CrossEntropyCuda : public DeviceTest {};
TYPED_TEST_SUITE(CrossEntropyCuda, DeviceElementTypes);

struct LogitRows {
  std::int64_t rows;
  std::int64_t stride;
  TokenRange range;
};
struct Case {
  LogitRows shape;
  Start start;
};
// Whole packs and not, with and without padding; in shared memory and, the last one, too long for that.
const std::vector<Case> kCases = {{{0, 8, {0, 8}}, Start::kAligned},        {{3, 1, {4, 1}}, Start::kAligned},
                                  {{5, 24, {10, 24}}, Start::kAligned},     {{5, 32, {10, 27}}, Start::kAligned},
                                  {{4, 33, {0, 31}}, Start::kAligned},      {{4, 40, {7, 39}}, Start::kOdd},
                                  {{3, 2056, {0, 2050}}, Start::kAligned},  {{2, 8, {3, 0}}, Start::kAligned},
                                  {{1, 51008, {0, 50999}}, Start::kAligned}};

TokenIds ids(DeviceArray<std::int32_t>& targets) { return {targets.elems().data(), targets.elems().size()}; }

/// The logits row by row, without padding.
template <class E>
std::vector<double> true_logits(const std::vector<E>& logits, const LogitRows& shape) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < shape.rows; ++i) {
    for (std::int64_t j = 0; j < shape.range.count; ++j) {
      result.push_back(static_cast<double>(to_float(logits[static_cast<std::size_t>(i * shape.stride + j)])));
    }
  }
  return result;
}

/// Logits with NaN as padding.
template <class E>
std::vector<E> some_logits(const LogitRows& shape) {
  std::vector<E> logits = random_elems<E>(1, shape.rows * shape.stride, 20);
  for (std::int64_t i = 0; i < shape.rows; ++i) {
    for (std::int64_t j = shape.range.count; j < shape.stride; ++j) {
      logits[static_cast<std::size_t>(i * shape.stride + j)] = to_elem<E>(std::nan(""));
    }
  }
  return logits;
}

/// The first and the last token of the range, one of another rank, and others.
std::vector<std::int32_t> some_targets(const LogitRows& shape, bool own_only) {
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < shape.rows; ++i) {
    std::int64_t target = shape.range.first + i * 5 % std::max<std::int64_t>(1, shape.range.count);
    if (i == 1) target = shape.range.first + std::max<std::int64_t>(1, shape.range.count) - 1;
    if (i == 2 && !own_only) target = shape.range.first + shape.range.count;
    targets.push_back(static_cast<std::int32_t>(target));
  }
  return targets;
}

/// Results of the CPU twin for a rank's part.
struct Expected {
  std::vector<double> largest;
  std::vector<double> sums;
  std::vector<double> predicted;
  std::vector<double> gradient;  ///< padded with zeros
  std::vector<double> losses;
};

Expected expected(std::vector<double> logits, const LogitRows& shape, std::vector<std::int32_t> targets) {
  const auto rows = static_cast<std::size_t>(shape.rows);
  const std::vector<double> of_rows(rows);
  Expected want{of_rows, of_rows, of_rows, {}, of_rows};
  const LogitBlock block{host(logits),           shape.rows,         shape.range.count, shape.range,
                         {targets.data(), rows}, host(want.largest), host(want.sums),   host(want.predicted),
                         host(want.losses)};
  row_maxima<double>(block, 1);
  exponential_sums<double>(block, 1);
  losses_of_sums<double>(block);
  logits_to_gradient<double>(block, 1);
  for (std::int64_t i = 0; i < shape.rows; ++i) {
    for (std::int64_t j = 0; j < shape.stride; ++j) {
      want.gradient.push_back(j < shape.range.count ? logits[i * shape.range.count + j] : 0);
    }
  }
  return want;
}

// Exponentials of up to 20 carry the rounding of the difference, 20 x 2^-24, and sums of them that of their additions.
constexpr double kExpRoundings = 100;

TYPED_TEST(CrossEntropyCuda, PiecesOfOneRank) {
  using E = TypeParam;
  for (const auto& [shape, start] : kCases) {
    const auto logits = some_logits<E>(shape);
    const auto targets = some_targets(shape, false);
    const Expected want = expected(true_logits(logits, shape), shape, targets);
    DeviceArray<E> device_logits(logits, this->stream(), start);
    DeviceArray<std::int32_t> device_targets(targets, this->stream());
    DeviceArray<float> largest = poisoned<float>(shape.rows, this->stream());
    DeviceArray<float> sums = poisoned<float>(shape.rows, this->stream());
    DeviceArray<float> predicted = poisoned<float>(shape.rows, this->stream());
    DeviceArray<float> losses = poisoned<float>(shape.rows, this->stream());
    LogitBlock block{device_logits.tensor(), shape.rows,    shape.stride,       shape.range,    ids(device_targets),
                     largest.tensor(),       sums.tensor(), predicted.tensor(), losses.tensor()};
    row_maxima<E>(block, this->stream());
    const std::vector<float> got_largest = largest.values();
    EXPECT_EQ(as<double>(got_largest), want.largest);
    if (shape.range.count == 0) {
      // Another rank's maximum takes the place of minus infinity.
      largest = DeviceArray<float>(std::vector<float>(got_largest.size(), 1.0F), this->stream());
      block.largest = largest.tensor();
    }
    exponential_sums<E>(block, this->stream());
    EXPECT_EQ(bytes_of(device_logits.values()), bytes_of(logits)) << "logits must stay";
    expect_close(sums.values(), want.sums, 0, kExpRoundings);
    expect_close(predicted.values(), want.predicted, 0);
    losses_of_sums(block, this->stream());
    if (shape.range.count > 0) expect_close(losses.values(), want.losses, 1e-5, 2);
    logits_to_gradient<E>(block, this->stream());
    expect_close(device_logits.values(), want.gradient, 1e-6, 1.05);
  }
}

TYPED_TEST(CrossEntropyCuda, AllInOnePassForOneRank) {
  using E = TypeParam;
  for (const auto& [shape, start] : kCases) {
    if (shape.range.count == 0) continue;
    const auto logits = some_logits<E>(shape);
    const auto targets = some_targets(shape, true);
    const Expected want = expected(true_logits(logits, shape), shape, targets);
    DeviceArray<E> device_logits(logits, this->stream(), start);
    DeviceArray<std::int32_t> device_targets(targets, this->stream());
    DeviceArray<float> losses = poisoned<float>(shape.rows, this->stream());
    LogitBlock block{device_logits.tensor(), shape.rows, shape.stride, shape.range, ids(device_targets), {}, {}, {},
                     losses.tensor()};
    cross_entropy<E>(block, Logits::kKeep, this->stream());
    EXPECT_EQ(bytes_of(device_logits.values()), bytes_of(logits)) << "logits must stay";
    const std::vector<float> forward_losses = losses.values();
    expect_close(forward_losses, want.losses, 1e-5, 2);
    losses = poisoned<float>(shape.rows, this->stream());
    block.losses = losses.tensor();
    cross_entropy<E>(block, Logits::kToGradient, this->stream());
    EXPECT_EQ(losses.values(), forward_losses);
    expect_close(device_logits.values(), want.gradient, 1e-7, 1.05);
  }
}

TYPED_TEST(CrossEntropyCuda, RefusesShortRanges) {
  using E = TypeParam;
  DeviceArray<E> logits = poisoned<E>(15, this->stream());
  DeviceArray<float> rows = poisoned<float>(2, this->stream());
  DeviceArray<std::int32_t> targets(std::vector<std::int32_t>(2), this->stream());
  const auto maxima = [&](const LogitRows& shape, std::size_t target_count = 2) {
    row_maxima<E>({logits.tensor(),
                   shape.rows,
                   shape.stride,
                   shape.range,
                   {targets.elems().data(), target_count},
                   rows.tensor(),
                   {},
                   {},
                   {}},
                  this->stream());
  };
  EXPECT_NO_THROW(maxima({2, 7, {0, 7}}));
  this->stream().synchronize();
  EXPECT_THROW(maxima({2, 8, {0, 8}}), CheckError);
  EXPECT_THROW(maxima({1, 7, {0, 8}}), CheckError);
  EXPECT_THROW(maxima({3, 5, {0, 5}}), CheckError);
  EXPECT_THROW(maxima({2, 7, {0, 7}}, 1), CheckError);
}

class CrossEntropyRowsCuda : public DeviceTest {};

TEST_F(CrossEntropyRowsCuda, MoreRowsThanBlocks) {
  const LogitRows shape{65540, 2, {0, 2}};
  std::vector<float> logits;
  for (std::int64_t i = 0; i < shape.rows; ++i) logits.insert(logits.end(), {i % 2 == 0 ? 0.0F : 1.0F, 0.0F});
  DeviceArray<float> device_logits(logits, stream());
  DeviceArray<std::int32_t> targets(std::vector<std::int32_t>(static_cast<std::size_t>(shape.rows)), stream());
  DeviceArray<float> losses = poisoned<float>(shape.rows, stream());
  cross_entropy<float>(
      {device_logits.tensor(), shape.rows, shape.stride, shape.range, ids(targets), {}, {}, {}, losses.tensor()},
      Logits::kToGradient, stream());
  const std::vector<float> got_losses = losses.values();
  const std::vector<float> gradient = device_logits.values();
  for (const std::int64_t i : {0, 1, 65534, 65535, 65536, 65537, 65538, 65539}) {
    // The loss is log(1 + e^-x), and p - 1 = -(1 - e^-loss).
    const double loss = std::log1p(std::exp(i % 2 == 0 ? 0 : -1));
    EXPECT_NEAR(got_losses[i], loss, 1e-6) << i;
    EXPECT_NEAR(gradient[2 * i], std::expm1(-loss), 1e-6) << i;
    EXPECT_NEAR(gradient[2 * i + 1], -std::expm1(-loss), 1e-6) << i;
  }
}

class OrderedSumCuda : public DeviceTest {};

TEST_F(OrderedSumCuda, SumsFloatsInDouble) {
  for (const std::int64_t count : {0, 1, 511, 512, 3001}) {
    const auto values = random_elems<float>(1, count);
    double want = 0;
    for (const float value : values) want += static_cast<double>(value);
    DeviceArray<float> device_values(values, stream());
    DeviceArray<double> sum = poisoned<double>(1, stream());
    sum_of_values(device_values.read(), 1, GradientMode::kSet, sum.elems(), stream());
    // Doubles add numbers of 24 bits without rounding here.
    EXPECT_EQ(sum.values(), std::vector<double>{want});
    sum_of_values(device_values.read(), 4, GradientMode::kAdd, sum.elems(), stream());
    EXPECT_EQ(sum.values(), std::vector<double>{want + want / 4});
  }
}

}  // namespace
}  // namespace droptest::models::cross_entropy_cuda_test
