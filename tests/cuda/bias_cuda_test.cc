// SPDX-License-Identifier: Apache-2.0
// Biases, GELU and column sums on a device against their CPU twins in double.
#include "models/kernels/gelu.h"
#include "models/kernels/residual.h"
#include "tests/cuda/device_kernels.h"

namespace droptest::models::bias_cuda_test {
namespace {

template <class E>
class BiasCuda : public DeviceTest {};
TYPED_TEST_SUITE(BiasCuda, DeviceElementTypes);

TYPED_TEST(BiasCuda, IsAddedToEachRowAndRoundedOnce) {
  using E = TypeParam;
  for (const auto& [rows, width, start] : kRowsCases) {
    const auto values = random_elems<E>(1, rows * width);
    const auto bias = random_elems<E>(2, width);
    std::vector<E> want;
    for (std::size_t i = 0; i < values.size(); ++i) {
      want.push_back(to_elem<E>(to_float(values[i]) + to_float(bias[i % bias.size()])));
    }
    DeviceArray<E> device_values(values, this->stream(), start);
    DeviceArray<E> device_bias(bias, this->stream(), start);
    add_bias<E>(device_bias.read(), rows, device_values.elems(), this->stream());
    EXPECT_EQ(bytes_of(device_values.values()), bytes_of(want)) << rows << " x " << width;
  }
}

TYPED_TEST(BiasCuda, GeluKeepsItsInputAndItsSlopeComesFromThere) {
  using E = TypeParam;
  for (const auto& [rows, width, start] : kRowsCases) {
    const auto count = rows * width;
    const auto values = random_elems<E>(1, count, 12);
    const auto bias = random_elems<E>(2, width);
    const auto gradient = random_elems<E>(3, count);
    std::vector<double> sums = as<double>(values);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(to_float(bias[i % bias.size()]));
    std::vector<double> slopes = sums;
    std::vector<double> want(sums.size());
    bias_gelu_forward<double>(std::vector<double>(bias.size()), rows, slopes, want, 1);
    DeviceArray<E> device_values(values, this->stream(), start);
    DeviceArray<E> device_bias(bias, this->stream(), start);
    DeviceArray<E> output = poisoned<E>(count, this->stream(), start);
    bias_gelu<E>(device_bias.read(), rows, device_values.elems(), output.elems(), this->stream());
    const std::vector<E> kept = device_values.values();
    expect_close(kept, sums, 0);
    expect_close(output.values(), want, 1e-6, 1.05);
    DeviceArray<E> in_place(values, this->stream(), start);
    bias_gelu<E>(device_bias.read(), rows, in_place.elems(), in_place.elems(), this->stream());
    EXPECT_EQ(bytes_of(in_place.values()), bytes_of(output.values()));

    // The derivative at the saved activation, which for bfloat16 is rounded.
    slopes = as<double>(kept);
    bias_gelu_forward<double>(std::vector<double>(bias.size()), rows, slopes, want, 1);
    for (std::size_t i = 0; i < slopes.size(); ++i) slopes[i] *= static_cast<double>(to_float(gradient[i]));
    DeviceArray<E> device_gradient(gradient, this->stream(), start);
    gelu_backward<E>(device_values.read(), device_gradient.elems(), this->stream());
    expect_close(device_gradient.values(), slopes, 2e-6, 1.05);
  }
}

TYPED_TEST(BiasCuda, GeluOfLargeNumbersIsThatOfTheLimit) {
  using E = TypeParam;
  const std::vector<E> values = {to_elem<E>(60), to_elem<E>(-60), to_elem<E>(1024), to_elem<E>(-1024)};
  DeviceArray<E> inputs(values, this->stream());
  DeviceArray<E> bias(std::vector<E>(4, to_elem<E>(0)), this->stream());
  DeviceArray<E> output = poisoned<E>(4, this->stream());
  DeviceArray<E> gradient(std::vector<E>(4, to_elem<E>(1)), this->stream());
  bias_gelu<E>(bias.read(), 1, inputs.elems(), output.elems(), this->stream());
  EXPECT_EQ(as<float>(output.values()), (std::vector<float>{60, 0, 1024, 0}));
  gelu_backward<E>(inputs.read(), gradient.elems(), this->stream());
  EXPECT_EQ(as<float>(gradient.values()), (std::vector<float>{1, 0, 1, 0}));
}

// Cases with more than one chunk of rows.
const std::vector<RowsCase> kSumCases = rows_cases_and({{700, 40, Start::kAligned}, {259, 3, Start::kAligned}});

TYPED_TEST(BiasCuda, ColumnSumsOfRowsWithAndWithoutGaps) {
  using E = TypeParam;
  for (const auto& [rows, width, start] : kSumCases) {
    for (const std::int64_t gap : {0, 8}) {
      for (const GradientMode mode : {GradientMode::kSet, GradientMode::kAdd}) {
        const RowShape shape{rows, width, width + gap};
        const auto values = random_elems<E>(1, rows * shape.stride);
        const auto before = random_elems<float>(2, width);
        std::vector<double> want(before.size());
        if (mode == GradientMode::kAdd) want = as<double>(before);
        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t j = 0; j < width; ++j) {
            want[j] += static_cast<double>(to_float(values[i * shape.stride + j]));
          }
        }
        DeviceArray<E> device_values(values, this->stream(), start);
        DeviceArray<float> sums(before, this->stream());
        DeviceArray<float> scratch = poisoned<float>(column_sums_scratch_elems(shape), this->stream());
        column_sums<E>(device_values.read(), shape, mode, sums.elems(), scratch.elems(), this->stream());
        // Each addition rounds a sum that is at most the number of rows.
        expect_close(sums.values(), want, 1e-7 + static_cast<double>(rows) * 1e-6, 1.01,
                     std::to_string(rows) + " x " + std::to_string(width));
      }
    }
  }
}

}  // namespace
}  // namespace droptest::models::bias_cuda_test
