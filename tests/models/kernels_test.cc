// SPDX-License-Identifier: Apache-2.0
// Compares each kernel with the simplest implementation of its formula, at odd and empty sizes and with several
// threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/kernels/chunks.h"
#include "models/kernels/embedding.h"
#include "models/kernels/exp_math.h"
#include "models/kernels/gelu.h"
#include "models/kernels/lanes.h"
#include "models/kernels/layernorm.h"
#include "models/kernels/matmul.h"
#include "models/kernels/residual.h"
#include "models/kernels/vector_width.h"
#include "tests/models/kernel_numbers.h"

namespace droptest::models::kernels_test {
namespace {

template <class T>
class Kernels : public testing::Test {};
TYPED_TEST_SUITE(Kernels, ElementTypes);

TYPED_TEST(Kernels, ExponentialIsRightToTwoUlps) {
  using T = TypeParam;
  for (int i = -19900; i <= 19900; ++i) {
    const T x = static_cast<T>(i) * static_cast<T>(0.00437);
    const double want = std::exp(static_cast<double>(x));
    EXPECT_NEAR(static_cast<double>(exp_plain(x)) / want, 1, 2 * std::numeric_limits<T>::epsilon()) << x;
  }
  const T infinity = std::numeric_limits<T>::infinity();
  EXPECT_EQ(exp_plain(T(0)), T(1));
  EXPECT_EQ(exp_plain(-infinity), T(0));
  EXPECT_EQ(exp_plain(T(-1e4)), T(0));
  EXPECT_EQ(exp_plain(infinity), infinity);
  EXPECT_EQ(exp_plain(T(1e4)), infinity);
  EXPECT_TRUE(std::isnan(exp_plain(std::numeric_limits<T>::quiet_NaN())));
}

TYPED_TEST(Kernels, MatmulInAllFormsAndStrides) {
  using T = TypeParam;
  const SingleThreadedLibraries single_threaded;
  struct Extents {
    std::int64_t m, n, k;
  };
  for (const Extents& e : {Extents{1, 1, 1}, Extents{5, 3, 7}, Extents{131, 300, 17}, Extents{300, 131, 33},
                           Extents{0, 4, 3}, Extents{4, 0, 3}, Extents{4, 3, 0}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const T beta : {T(0), T(1), T(-0.5)}) {
          const std::int64_t a_rows = ta ? e.k : e.m;
          const std::int64_t a_columns = ta ? e.m : e.k;
          const std::int64_t b_rows = tb ? e.n : e.k;
          const std::int64_t b_columns = tb ? e.k : e.n;
          const auto a = numbers<T>(1, (a_rows + 1) * (a_columns + 3));
          const auto b = numbers<T>(2, (b_rows + 1) * (b_columns + 2));
          const auto before = numbers<T>(3, (e.m + 1) * (e.n + 1));
          std::vector<T> want = before;
          for (std::int64_t i = 0; i < e.m; ++i) {
            for (std::int64_t j = 0; j < e.n; ++j) {
              double sum = 0;
              for (std::int64_t l = 0; l < e.k; ++l) {
                sum += static_cast<double>(ta ? a[l * (a_columns + 3) + i] : a[i * (a_columns + 3) + l]) *
                       static_cast<double>(tb ? b[j * (b_columns + 2) + l] : b[l * (b_columns + 2) + j]);
              }
              T& out = want[i * (e.n + 1) + j];
              out = static_cast<T>(2 * sum + static_cast<double>(beta * out));
            }
          }
          std::vector<T> first;
          for (const int threads : {1, 2, 3}) {
            // If beta = 0, the old result is not read, even if it is NaN.
            std::vector<T> got = before;
            if (beta == T(0)) {
              for (std::int64_t i = 0; i < e.m; ++i) {
                for (std::int64_t j = 0; j < e.n; ++j) got[i * (e.n + 1) + j] = std::numeric_limits<T>::quiet_NaN();
              }
            }
            matmul<T>(ta ? Transpose::kYes : Transpose::kNo, {a.data(), a_rows, a_columns, a_columns + 3},
                      tb ? Transpose::kYes : Transpose::kNo, {b.data(), b_rows, b_columns, b_columns + 2}, T(2), beta,
                      {got.data(), e.m, e.n, e.n + 1}, threads);
            expect_near(got, want, kBound<T>);
            if (threads == 1) first = got;
            EXPECT_EQ(got, first) << threads << " threads";
          }
        }
      }
    }
  }
}

TYPED_TEST(Kernels, GeluAndItsSlope) {
  using T = TypeParam;
  std::vector<T> x = {0, T(1e-4), T(-1e-4), 1, -1, 3, -3, 12, -12, 60, -60};
  std::vector<T> y(x.size());
  std::vector<T> values = x;
  bias_gelu_forward<T>(std::vector<T>{T(0)}, static_cast<std::int64_t>(x.size()), values, y, 2);
  std::vector<T> slope(x.size(), T(2));
  std::vector<T> bias_gradient(1);
  bias_gelu_backward<T>(values, static_cast<std::int64_t>(x.size()), slope, bias_gradient, 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto gelu = [](long double z) {
      return 0.5L * z * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846L) * (z + 0.044715L * z * z * z)));
    };
    const long double h = 1e-6L;
    EXPECT_NEAR(y[i], static_cast<double>(gelu(x[i])), kBound<T> / 10) << x[i];
    EXPECT_NEAR(slope[i], static_cast<double>((gelu(x[i] + h) - gelu(x[i] - h)) / h), std::max(kBound<T>, 1e-9))
        << x[i];
  }
  bias_gelu_forward<T>({}, 0, {}, {}, 2);
}

TYPED_TEST(Kernels, GeluAddsTheBiasFirstAndItsGradientSumsColumns) {
  using T = TypeParam;
  const std::int64_t rows = 21;
  const std::int64_t width = 131;
  const auto before = numbers<T>(1, rows * width);
  const auto bias = numbers<T>(2, width);
  std::vector<T> sums = before;
  for (std::int64_t k = 0; k < rows * width; ++k) sums[k] += bias[k % width];
  std::vector<T> want(before.size());
  std::vector<T> want_slopes = sums;
  bias_gelu_forward<T>(std::vector<T>(width), rows, want_slopes, want, 1);
  std::vector<T> got(before.size());
  std::vector<T> slopes = before;
  bias_gelu_forward<T>(bias, rows, slopes, got, 2);
  EXPECT_EQ(got, want);
  EXPECT_EQ(slopes, want_slopes);
  std::vector<T> in_place = before;
  bias_gelu<T>(bias, rows, in_place, 2);
  EXPECT_EQ(in_place, want);
  const auto dy = numbers<T>(3, rows * width);
  std::vector<T> want_gradient = dy;
  std::vector<T> want_bias(width, T(1));
  for (std::int64_t k = 0; k < rows * width; ++k) {
    want_gradient[k] *= slopes[k];
    want_bias[k % width] += want_gradient[k];
  }
  for (const int threads : {1, 3}) {
    std::vector<T> gradient = dy;
    std::vector<T> bias_gradient(width, T(1));
    bias_gelu_backward<T>(slopes, rows, gradient, bias_gradient, threads);
    EXPECT_EQ(gradient, want_gradient);
    EXPECT_EQ(bias_gradient, want_bias);
  }
}

TYPED_TEST(Kernels, LayerNormOfAStreamThatTakesABranch) {
  using T = TypeParam;
  for (const std::int64_t width : {1, 33, 130}) {
    const std::int64_t rows = 19;
    const auto residual = numbers<T>(1, rows * width);
    const auto branch = numbers<T>(2, rows * width);
    const auto branch_bias = numbers<T>(3, width);
    const auto gain = numbers<T>(4, width);
    const auto bias = numbers<T>(5, width);
    std::vector<T> want_stream(residual.size());
    for (std::int64_t k = 0; k < rows * width; ++k) {
      want_stream[k] = residual[k] + (branch[k] + branch_bias[k % width]);
    }
    std::vector<T> want(residual.size());
    std::vector<T> want_mean(rows);
    std::vector<T> want_deviation(rows);
    layernorm_forward<T>({host(want_stream),
                          {},
                          {},
                          host(gain),
                          host(bias),
                          rows,
                          width,
                          {},
                          host(want),
                          host(want_mean),
                          host(want_deviation)},
                         1);
    std::vector<T> stream = residual;
    std::vector<T> got(residual.size());
    std::vector<T> mean(rows);
    std::vector<T> deviation(rows);
    layernorm_forward<T>({host(stream), host(branch), host(branch_bias), host(gain), host(bias), rows, width,
                          host(stream), host(got), host(mean), host(deviation)},
                         2);
    EXPECT_EQ(stream, want_stream);
    EXPECT_EQ(got, want);
    EXPECT_EQ(mean, want_mean);
    EXPECT_EQ(deviation, want_deviation);
  }
}

/// Sums by lanes, exponentials and similar functions: all vector widths must have the same results.
template <class T>
std::vector<T> loops_of_all_kinds(VectorWidth width, const std::vector<T>& x) {
  std::vector<T> out(x.size() + 2);
  const auto count = static_cast<std::int64_t>(x.size());
  run_vectorised(width, [&] {
    for (std::int64_t i = 0; i < count; ++i) out[i] = exp_plain(x[i] * T(3)) * x[i] + std::sqrt(x[i] * x[i]) / T(7);
    out[count] = lane_sum<T>(count, [&](std::int64_t i) { return x[i] * out[i]; });
    out[count + 1] = lane_max(x.data(), count);
  });
  return out;
}

TYPED_TEST(Kernels, EveryVectorWidthGivesTheSameBits) {
  using T = TypeParam;
  for (const std::int64_t count : {1, 15, 16, 17, 333}) {
    const auto x = numbers<T>(1, count);
    const auto plain = loops_of_all_kinds(VectorWidth::kBaseline, x);
    if (widest_vectors() >= VectorWidth::kAvx2) {
      EXPECT_EQ(loops_of_all_kinds(VectorWidth::kAvx2, x), plain);
    }
    if (widest_vectors() >= VectorWidth::kAvx512) {
      EXPECT_EQ(loops_of_all_kinds(VectorWidth::kAvx512, x), plain);
    }
  }
}

TYPED_TEST(Kernels, LayerNormForwardAndSlope) {
  using T = TypeParam;
  for (const std::int64_t width : {1, 7, 33, 130}) {
    const std::int64_t rows = 19;
    const auto x = numbers<T>(1, rows * width);
    const auto gain = numbers<T>(2, width);
    const auto bias = numbers<T>(3, width);
    const auto dy = numbers<T>(4, rows * width);
    std::vector<T> y(x.size());
    std::vector<T> mean(rows);
    std::vector<T> deviation(rows);
    layernorm_forward<T>(
        {host(x), {}, {}, host(gain), host(bias), rows, width, {}, host(y), host(mean), host(deviation)}, 2);
    std::vector<T> dx(x.size(), T(1));
    std::vector<T> dgain(gain.size(), T(1));
    std::vector<T> dbias(bias.size(), T(1));
    layernorm_backward<T>({host(dy),
                           host(x),
                           host(mean),
                           host(deviation),
                           host(gain),
                           rows,
                           width,
                           host(dx),
                           host(dx),
                           host(dgain),
                           host(dbias),
                           {},
                           GradientMode::kAdd,
                           {}},
                          2);
    // <dy, y(x, gain, bias)> in double; its derivatives by differences.
    const auto inner = [&](const std::vector<T>& at, std::int64_t moved, double by) {
      double total = 0;
      for (std::int64_t i = 0; i < rows; ++i) {
        const auto value = [&](std::int64_t j) {
          return static_cast<double>(at[i * width + j]) + (i * width + j == moved ? by : 0);
        };
        double m = 0;
        for (std::int64_t j = 0; j < width; ++j) m += value(j) / static_cast<double>(width);
        double s = 0;
        for (std::int64_t j = 0; j < width; ++j) s += (value(j) - m) * (value(j) - m) / static_cast<double>(width);
        for (std::int64_t j = 0; j < width; ++j) {
          const double normal = (value(j) - m) / std::sqrt(s + 1e-5);
          const double out = normal * static_cast<double>(gain[j]) + static_cast<double>(bias[j]);
          if (by == 0) {
            EXPECT_NEAR(y[i * width + j], out, 10 * kBound<T>);
          }
          total += static_cast<double>(dy[i * width + j]) * out;
        }
      }
      return total;
    };
    inner(x, -1, 0);
    for (std::int64_t k = 0; k < rows * width; k += 13) {
      const double slope = (inner(x, k, 1e-5) - inner(x, k, -1e-5)) / 2e-5;
      EXPECT_NEAR(dx[k] - T(1), slope, std::max(20 * kBound<T>, 1e-7)) << "width " << width;
    }
    for (std::int64_t j = 0; j < width; ++j) {
      double want_gain = 1;
      double want_bias = 1;
      for (std::int64_t i = 0; i < rows; ++i) {
        want_gain +=
            static_cast<double>(dy[i * width + j]) * static_cast<double>((x[i * width + j] - mean[i]) * deviation[i]);
        want_bias += static_cast<double>(dy[i * width + j]);
      }
      EXPECT_NEAR(dgain[j], want_gain, kBound<T>);
      EXPECT_NEAR(dbias[j], want_bias, kBound<T>);
    }
  }
  layernorm_forward<T>({{}, {}, {}, {}, {}, 0, 4, {}, {}, {}, {}}, 2);
}

TYPED_TEST(Kernels, EmbeddingTakesOwnRowsAndAddsUpDuplicates) {
  using T = TypeParam;
  const std::int64_t width = 67;
  const std::vector<std::int32_t> tokens = {3, 9, 4, 3, 3, 0, 5};
  const TokenRange range{3, 2};
  const auto table = numbers<T>(1, 2 * width);
  std::vector<T> out(tokens.size() * width, T(9));
  embedding_forward<T>(tokens, range, table, width, out, 2);
  const auto dout = numbers<T>(2, static_cast<std::int64_t>(tokens.size()) * width);
  std::vector<T> grad(table.size(), T(1));
  embedding_backward<T>(tokens, range, dout, width, grad, 2);
  std::vector<T> want(table.size(), T(1));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      const bool own = tokens[i] == 3 || tokens[i] == 4;
      EXPECT_EQ(out[i * width + j], own ? table[(tokens[i] - 3) * width + j] : T(0));
      if (own) want[(tokens[i] - 3) * width + j] += dout[i * width + j];
    }
  }
  EXPECT_EQ(grad, want);
  embedding_forward<T>({}, range, table, width, {}, 2);
}

TYPED_TEST(Kernels, BiasesPositionsAndColumnSums) {
  using T = TypeParam;
  const std::int64_t batch = 3;
  const std::int64_t length = 41;
  const std::int64_t width = 70;
  const auto residual = numbers<T>(1, batch * length * width);
  const auto bias = numbers<T>(3, width);
  const auto table = numbers<T>(4, length * width);
  std::vector<T> filled(residual.size());
  fill_rows<T>(bias, batch * length, filled, 2);
  std::vector<T> placed = residual;
  add_positions<T>(table, batch, length, width, placed, 2);
  std::vector<T> sums(bias.size(), T(1));
  add_column_sums<T>(residual, batch * length, sums, 2);
  std::vector<T> positions(table.size(), T(1));
  positions_backward<T>(residual, batch, length, width, positions, 2);
  std::vector<T> want_sums(bias.size(), T(1));
  std::vector<T> want_positions(table.size(), T(1));
  for (std::int64_t i = 0; i < batch * length; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      const std::size_t k = static_cast<std::size_t>(i * width + j);
      const std::size_t p = static_cast<std::size_t>(i % length * width + j);
      EXPECT_EQ(filled[k], bias[j]);
      EXPECT_EQ(placed[k], residual[k] + table[p]);
      want_sums[j] += residual[k];
      want_positions[p] += residual[k];
    }
  }
  EXPECT_EQ(sums, want_sums);
  EXPECT_EQ(positions, want_positions);
}

TEST(Chunks, CoverTheRangeOnceForAnyThreads) {
  for (const std::int64_t items : {0, 1, 63, 64, 65, 1000}) {
    for (const int threads : {1, 2, 5}) {
      std::vector<int> visits(static_cast<std::size_t>(items));
      for_chunks(items, chunk_items(items, 64), threads, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_EQ(begin % 64, 0);
        for (std::int64_t i = begin; i < end; ++i) ++visits[i];
      });
      EXPECT_EQ(visits, std::vector<int>(static_cast<std::size_t>(items), 1));
    }
  }
}

}  // namespace
}  // namespace droptest::models::kernels_test
