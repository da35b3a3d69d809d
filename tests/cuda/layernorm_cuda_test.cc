// SPDX-License-Identifier: Apache-2.0
// Layer normalisation on a device against its CPU twin in double.
#include "models/kernels/layernorm.h"

#include <tuple>

#include "tests/cuda/device_kernels.h"

namespace droptest::models::layernorm_cuda_test {
namespace {

template <class E>
class LayerNormCuda : public DeviceTest {};
TYPED_TEST_SUITE(LayerNormCuda, DeviceElementTypes);

// Sums of a few thousand numbers of size 1 in float, divided by as many, and products with numbers of size 1 and
// inverse deviations of up to 4 (rows of one element: 300, but of differences that are 0).
constexpr double kNoise = 3e-5;

// Cases with more rows than blocks; in the backward pass, a block has several warps.
const std::vector<RowsCase> kForwardCases = rows_cases_and({{4100, 8, Start::kAligned}});
const std::vector<RowsCase> kBackwardCases =
    rows_cases_and({{2060, 71, Start::kAligned}, {2060, 520, Start::kAligned}});

/// The stream after the branch as a device keeps it: rounded.
template <class E>
std::vector<E> sum_of(const std::vector<E>& residual, const std::vector<E>& branch, const std::vector<E>& bias) {
  std::vector<E> sum;
  for (std::size_t i = 0; i < residual.size(); ++i) {
    sum.push_back(to_elem<E>(to_float(residual[i]) + (to_float(branch[i]) + to_float(bias[i % bias.size()]))));
  }
  return sum;
}

/// Results of the CPU twin.
struct Normalised {
  std::vector<double> output, mean, inverse_deviation;
};
Normalised normalised(const std::vector<double>& x, const std::vector<double>& gain, const std::vector<double>& bias,
                      std::int64_t rows, std::int64_t width) {
  const std::vector<double> of_rows(static_cast<std::size_t>(rows));
  Normalised n{std::vector<double>(x.size()), of_rows, of_rows};
  layernorm_forward<double>({host(x),
                             {},
                             {},
                             host(gain),
                             host(bias),
                             rows,
                             width,
                             {},
                             host(n.output),
                             host(n.mean),
                             host(n.inverse_deviation)},
                            1);
  return n;
}

TYPED_TEST(LayerNormCuda, ForwardWithAndWithoutABranch) {
  using E = TypeParam;
  for (const auto& [rows, width, start] : kForwardCases) {
    for (const std::string_view branches : {"none", "biased", "in place"}) {
      const auto count = rows * width;
      const auto residual = random_elems<E>(1, count);
      const auto branch = random_elems<E>(2, count);
      const auto branch_bias = random_elems<E>(3, width);
      const auto gain = random_elems<E>(4, width);
      const auto bias = random_elems<E>(5, width);
      std::vector<E> after = residual;
      if (branches != "none") after = sum_of(residual, branch, branch_bias);
      const Normalised want = normalised(as<double>(after), as<double>(gain), as<double>(bias), rows, width);
      DeviceArray<E> device_residual(residual, this->stream(), start);
      DeviceArray<E> device_branch(branch, this->stream(), start);
      DeviceArray<E> device_branch_bias(branch_bias, this->stream(), start);
      DeviceArray<E> device_gain(gain, this->stream(), start);
      DeviceArray<E> device_bias(bias, this->stream(), start);
      DeviceArray<E> device_after = poisoned<E>(count, this->stream(), start);
      DeviceArray<E> output = poisoned<E>(count, this->stream(), start);
      DeviceArray<float> mean = poisoned<float>(rows, this->stream());
      DeviceArray<float> deviation = poisoned<float>(rows, this->stream());
      DeviceArray<E>& kept = branches == "in place" ? device_residual : device_after;
      NormForward norm{device_residual.tensor(),
                       {},
                       {},
                       device_gain.tensor(),
                       device_bias.tensor(),
                       rows,
                       width,
                       kept.tensor(),
                       output.tensor(),
                       mean.tensor(),
                       deviation.tensor()};
      if (branches != "none") {
        norm.branch = device_branch.tensor();
        norm.branch_bias = device_branch_bias.tensor();
      }
      layernorm_forward<E>(norm, this->stream());
      if (branches != "none") {
        EXPECT_EQ(bytes_of(kept.values()), bytes_of(after)) << branches;
      }
      const std::string what = std::string(branches) + " " + std::to_string(rows) + " x " + std::to_string(width);
      expect_close(output.values(), want.output, kNoise, 1.01, what);
      expect_close(mean.values(), want.mean, 1e-6, 8, what);
      expect_close(deviation.values(), want.inverse_deviation, 0, 64, what);
    }
  }
}

TYPED_TEST(LayerNormCuda, BackwardSetsOrAddsAllGradients) {
  using E = TypeParam;
  for (const auto& [rows, width, start] : kBackwardCases) {
    for (const GradientMode mode : {GradientMode::kSet, GradientMode::kAdd}) {
      const bool sets = mode == GradientMode::kSet;
      // kSet stands for the norm after the last block: there is no earlier gradient of the residual stream, and no bias
      // of a branch.
      const auto count = rows * width;
      const auto x = random_elems<E>(1, count);
      const auto dy = random_elems<E>(2, count);
      const auto gain = random_elems<E>(3, width);
      const auto residual = random_elems<E>(4, count);
      const auto before = random_elems<float>(5, width);
      const Normalised forward = normalised(as<double>(x), as<double>(gain), as<double>(gain), rows, width);
      const std::vector<float> mean(forward.mean.begin(), forward.mean.end());
      const std::vector<float> deviation(forward.inverse_deviation.begin(), forward.inverse_deviation.end());
      std::vector<double> want = as<double>(residual);
      std::vector<double> want_gain = as<double>(before);
      if (sets) {
        std::fill(want.begin(), want.end(), 0.0);
        std::fill(want_gain.begin(), want_gain.end(), 0.0);
      }
      std::vector<double> want_bias = want_gain;
      std::vector<double> want_branch = want_gain;
      const auto [dy64, x64, mean64, deviation64, gain64] =
          std::tuple(as<double>(dy), as<double>(x), as<double>(mean), as<double>(deviation), as<double>(gain));
      layernorm_backward<double>({host(dy64),
                                  host(x64),
                                  host(mean64),
                                  host(deviation64),
                                  host(gain64),
                                  rows,
                                  width,
                                  host(want),
                                  host(want),
                                  host(want_gain),
                                  host(want_bias),
                                  {},
                                  mode,
                                  {}},
                                 1);

      DeviceArray<E> device_dy(dy, this->stream(), start);
      DeviceArray<E> device_x(x, this->stream(), start);
      DeviceArray<E> device_gain(gain, this->stream(), start);
      DeviceArray<float> device_mean(mean, this->stream());
      DeviceArray<float> device_deviation(deviation, this->stream());
      DeviceArray<E> dx(residual, this->stream(), start);
      DeviceArray<float> dgain(before, this->stream());
      DeviceArray<float> dbias(before, this->stream());
      std::vector<float> branch_before = before;
      if (sets) branch_before.clear();
      DeviceArray<float> dbranch(branch_before, this->stream());
      DeviceArray<float> scratch = poisoned<float>(layernorm_scratch_elems(rows, width), this->stream());
      layernorm_backward<E>({device_dy.tensor(), device_x.tensor(), device_mean.tensor(), device_deviation.tensor(),
                             device_gain.tensor(), rows, width, sets ? comm::Tensor() : dx.tensor(), dx.tensor(),
                             dgain.tensor(), dbias.tensor(), dbranch.tensor(), mode, scratch.tensor()},
                            this->stream());
      const std::string what = std::to_string(rows) + " x " + std::to_string(width) + (sets ? " set" : " added");
      expect_close(dx.values(), want, 3 * kNoise, 1.01, what);
      const double sums = 1e-6 * static_cast<double>(rows + 10);
      expect_close(dgain.values(), want_gain, sums, 4, what);
      expect_close(dbias.values(), want_bias, sums, 4, what);
      if (!sets) {
        // Column sums of the stored gradients.
        const std::vector<double> stored = as<double>(dx.values());
        for (std::int64_t i = 0; i < count; ++i) want_branch[i % width] += stored[i];
        expect_close(dbranch.values(), want_branch, sums, 4, what);
      }
    }
  }
}

TYPED_TEST(LayerNormCuda, RefusesRangesThatDoNotFit) {
  using E = TypeParam;
  DeviceArray<E> x = poisoned<E>(24, this->stream());
  DeviceArray<E> gain = poisoned<E>(8, this->stream());
  DeviceArray<float> rows = poisoned<float>(3, this->stream());
  const auto forward = [&](std::int64_t count, const comm::Tensor& bias) {
    layernorm_forward<E>(
        {x.tensor(), {}, {}, gain.tensor(), bias, count, 8, {}, x.tensor(), rows.tensor(), rows.tensor()},
        this->stream());
  };
  EXPECT_NO_THROW(forward(3, gain.tensor()));
  this->stream().synchronize();
  EXPECT_THROW(forward(4, gain.tensor()), CheckError);
  EXPECT_THROW(forward(3, comm::device_tensor(gain.elems().first(7), this->stream())), CheckError);
}

}  // namespace
}  // namespace droptest::models::layernorm_cuda_test
