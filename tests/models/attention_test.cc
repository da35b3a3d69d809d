// SPDX-License-Identifier: Apache-2.0
// Compares attention with the simplest implementation of the formula.
#include "models/kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/kernels/chunks.h"
#include "tests/models/kernel_numbers.h"

namespace droptest::models::attention_test {
namespace {

template <class T>
class Attention : public testing::Test {};
TYPED_TEST_SUITE(Attention, ElementTypes);

/// softmax(mask(q k' / sqrt(D))) v of one head, as a function of the packed rows.
std::vector<double> naive_attention(const std::vector<double>& qkv, const AttentionShape& s) {
  const std::int64_t part = s.heads * s.head_width;
  std::vector<double> out(static_cast<std::size_t>(s.batch * s.length * part));
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const auto at = [&](std::int64_t t, std::int64_t which, std::int64_t d) {
        return qkv[((b * s.length + t) * 3 + which) * part + h * s.head_width + d];
      };
      for (std::int64_t t = 0; t < s.length; ++t) {
        std::vector<double> weight;
        double sum = 0;
        for (std::int64_t u = 0; u <= t; ++u) {
          double score = 0;
          for (std::int64_t d = 0; d < s.head_width; ++d) score += at(t, 0, d) * at(u, 1, d);
          weight.push_back(std::exp(score / std::sqrt(static_cast<double>(s.head_width))));
          sum += weight.back();
        }
        for (std::int64_t d = 0; d < s.head_width; ++d) {
          double value = 0;
          for (std::int64_t u = 0; u <= t; ++u) value += weight[u] / sum * at(u, 2, d);
          out[(b * s.length + t) * part + h * s.head_width + d] = value;
        }
      }
    }
  }
  return out;
}

TYPED_TEST(Attention, ForwardAndSlope) {
  using T = TypeParam;
  const SingleThreadedLibraries single_threaded;
  // Lengths about the block of 64 queries, and of one token.
  for (const AttentionShape& shape :
       {AttentionShape{2, 1, 1, 4}, AttentionShape{1, 64, 2, 3}, AttentionShape{2, 65, 3, 5},
        AttentionShape{1, 130, 1, 8}, AttentionShape{0, 5, 2, 4}}) {
    const std::int64_t part = shape.heads * shape.head_width;
    const std::int64_t rows = shape.batch * shape.length;
    const auto qkv = numbers<T>(1, rows * 3 * part);
    const auto dout = numbers<T>(2, rows * part);
    std::vector<double> at(qkv.begin(), qkv.end());
    const std::vector<double> want = naive_attention(at, shape);
    std::vector<T> first_out;
    std::vector<T> first_grad;
    for (const int threads : {1, 2, 3}) {
      std::vector<T> statistics(attention_statistics_elems(shape), std::numeric_limits<T>::quiet_NaN());
      std::vector<T> out(static_cast<std::size_t>(rows * part));
      std::vector<T> grad(qkv.size(), std::numeric_limits<T>::quiet_NaN());
      std::vector<T> scratch(attention_scratch_elems(shape, threads), std::numeric_limits<T>::quiet_NaN());
      attention_forward<T>(qkv, shape, statistics, out, scratch, threads);
      attention_backward<T>(dout, qkv, statistics, shape, grad, scratch, threads);
      if (threads == 1) {
        first_out = out;
        first_grad = grad;
      }
      EXPECT_EQ(out, first_out);
      EXPECT_EQ(grad, first_grad);
    }
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(first_out[i], want[i], kBound<T>);
    const auto inner = [&](std::size_t moved, double by) {
      at[moved] += by;
      const std::vector<double> out = naive_attention(at, shape);
      at[moved] -= by;
      double total = 0;
      for (std::size_t i = 0; i < out.size(); ++i) total += out[i] * static_cast<double>(dout[i]);
      return total;
    };
    for (std::size_t k = 0; k < qkv.size(); k += qkv.size() / 40 + 1) {
      const double slope = (inner(k, 1e-5) - inner(k, -1e-5)) / 2e-5;
      ASSERT_NEAR(first_grad[k], slope, std::max(kBound<T>, 1e-8)) << "element " << k;
    }
  }
}

TYPED_TEST(Attention, DoesNotSeeTheFuture) {
  using T = TypeParam;
  const SingleThreadedLibraries single_threaded;
  const AttentionShape shape{1, 70, 2, 4};
  auto qkv = numbers<T>(1, 70 * 24);
  std::vector<T> statistics(attention_statistics_elems(shape));
  std::vector<T> scratch(attention_scratch_elems(shape, 1));
  std::vector<T> before(70 * 8);
  std::vector<T> after(70 * 8);
  attention_forward<T>(qkv, shape, statistics, before, scratch, 1);
  for (std::size_t i = 66 * 24; i < qkv.size(); ++i) qkv[i] = T(3) - qkv[i];
  attention_forward<T>(qkv, shape, statistics, after, scratch, 1);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 66 * 8, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + 66 * 8, before.end(), after.begin() + 66 * 8));
}

}  // namespace
}  // namespace droptest::models::attention_test
