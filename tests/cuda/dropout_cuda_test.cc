// SPDX-License-Identifier: Apache-2.0
// Dropout on a device has the masks of its CPU twin, bit for bit.
#include "models/kernels/dropout.h"

#include <utility>

#include "models/kernels/layernorm.h"
#include "tests/cuda/device_kernels.h"
#include "tests/models/dropout_draws.h"

namespace droptest::models::dropout_cuda_test {
namespace {

template <class E>
class DropoutCuda : public DeviceTest {};
TYPED_TEST_SUITE(DropoutCuda, DeviceElementTypes);

DropoutMask mask_of_rows(double probability) {
  DropoutMask mask = dropout_of_keys(probability);
  mask.purpose = sim::Purpose::kResidualDropout;
  mask.length = 5;
  mask.first_row = 3;
  mask.tokens_before_gap = 2;
  mask.gap = 11;
  return mask;
}

TYPED_TEST(DropoutCuda, DropsTheElementsOfTheHost) {
  using E = TypeParam;
  for (const double p : {1e-9, 0.3, 0.99}) {
    for (const auto& [rows, width] : {std::pair(0, 5), std::pair(13, 1), std::pair(7, 64), std::pair(12, 333)}) {
      const DropoutMask mask = mask_of_rows(p);
      const auto values = random_elems<E>(1, rows * width);
      std::vector<double> factors(values.size(), 1);
      drop_elements<double>(factors.data(), mask, rows, width, factors.data(), 1);
      std::vector<E> want;
      for (std::size_t i = 0; i < values.size(); ++i) {
        want.push_back(to_elem<E>(static_cast<float>(factors[i]) * to_float(values[i])));
      }
      DeviceArray<E> from(values, this->stream());
      DeviceArray<E> to = poisoned<E>(values.size(), this->stream());
      drop_elements<E>(from.read(), mask, rows, width, to.elems(), this->stream());
      EXPECT_EQ(bytes_of(to.values()), bytes_of(want)) << rows << " x " << width << ", p " << p;
      drop_elements<E>(from.read(), mask, rows, width, from.elems(), this->stream());
      EXPECT_EQ(bytes_of(from.values()), bytes_of(want)) << "in place";
    }
  }
}

// The widths have whole packs or not, and rows that are longer than a block.
TYPED_TEST(DropoutCuda, ANormAddsTheBranchWithTheMaskOfTheHost) {
  using E = TypeParam;
  constexpr std::int64_t kRows = 12;
  for (const std::int64_t width : {7, 64, 333}) {
    const std::vector<E> zeros(static_cast<std::size_t>(kRows * width), to_elem<E>(0));
    const std::vector<E> halves(zeros.size(), to_elem<E>(0.5));  // branch; its bias has the other halves
    const std::vector<E> of_width(static_cast<std::size_t>(width), to_elem<E>(0.5));
    std::vector<double> factors(zeros.size(), 1);
    NormForward n;
    n.dropout = mask_of_rows(0.3);
    drop_elements<double>(factors.data(), n.dropout, kRows, width, factors.data(), 1);
    std::vector<E> want;
    for (const double factor : factors) want.push_back(to_elem<E>(static_cast<float>(factor)));
    DeviceArray<E> residual(zeros, this->stream());
    DeviceArray<E> branch(halves, this->stream());
    DeviceArray<E> parameters(of_width, this->stream());
    DeviceArray<E> after = poisoned<E>(zeros.size(), this->stream());
    DeviceArray<E> output = poisoned<E>(zeros.size(), this->stream());
    DeviceArray<float> statistics = poisoned<float>(2 * kRows, this->stream());
    n.residual = residual.tensor();
    n.branch = branch.tensor();
    n.branch_bias = parameters.tensor();
    n.gain = parameters.tensor();
    n.bias = parameters.tensor();
    n.rows = kRows;
    n.width = width;
    n.residual_after = after.tensor();
    n.output = output.tensor();
    n.mean = comm::device_tensor(statistics.elems().first(kRows), this->stream());
    n.inverse_deviation = comm::device_tensor(statistics.elems().subspan(kRows, kRows), this->stream());
    layernorm_forward<E>(n, this->stream());
    EXPECT_EQ(bytes_of(after.values()), bytes_of(want)) << width;
    add_branch<E>(n, this->stream());
    EXPECT_EQ(bytes_of(after.values()), bytes_of(want)) << width;
  }
}

}  // namespace
}  // namespace droptest::models::dropout_cuda_test
