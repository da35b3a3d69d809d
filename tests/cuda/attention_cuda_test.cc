// SPDX-License-Identifier: Apache-2.0
// Attention on a device, in all its forms, against the CPU twin in double.
#include "models/kernels/attention.h"

#include "models/kernels/chunks.h"
#include "tests/cuda/device_kernels.h"
#include "tests/models/dropout_draws.h"

namespace droptest::models::attention_cuda_test {
namespace {

template <class E>
class AttentionCuda : public DeviceTest {};
TYPED_TEST_SUITE(AttentionCuda, DeviceElementTypes);

struct Case {
  AttentionShape shape;
  Start start = Start::kAligned;
};
// Lengths about the tiles of 16, 32 and 64; widths of each form, and bfloat16's tensor cores at 64 and 128.
const std::vector<Case> kCases = {
    {{2, 1, 1, 4}},    {{1, 64, 2, 3}},   {{2, 65, 3, 5}},    {{1, 130, 1, 8}},
    {{0, 5, 2, 4}},    {{1, 0, 2, 64}},   {{1, 70, 2, 80}},   {{1, 33, 1, 200}},
    {{1, 40, 1, 256}}, {{1, 64, 1, 64}},  {{2, 65, 2, 64}},   {{1, 130, 1, 64}},
    {{1, 1, 2, 64}},   {{1, 66, 2, 128}}, {{1, 130, 1, 128}}, {{1, 70, 1, 64}, Start::kOdd}};

std::string text_of(const AttentionShape& s) {
  return "B " + std::to_string(s.batch) + " T " + std::to_string(s.length) + " NH " + std::to_string(s.heads) + " D " +
         std::to_string(s.head_width);
}

struct Expected {
  std::vector<double> output;
  std::vector<double> log_sum_exp;
  std::vector<double> grad_qkv;
};

template <class E>
Expected expected(const std::vector<E>& qkv, const std::vector<E>& grad_output, const AttentionShape& shape,
                  const DropoutMask& dropout = {}) {
  const SingleThreadedLibraries single_threaded;
  const std::vector<double> x = as<double>(qkv);
  std::vector<double> statistics(attention_statistics_elems(shape));
  std::vector<double> scratch(attention_scratch_elems(shape, 1));
  Expected want{std::vector<double>(grad_output.size()), {}, std::vector<double>(qkv.size())};
  attention_forward<double>(x, shape, statistics, want.output, scratch, 1, dropout);
  attention_backward<double>(as<double>(grad_output), x, statistics, shape, want.grad_qkv, scratch, 1, dropout);
  for (std::size_t i = 0; i < statistics.size(); i += 2) {
    want.log_sum_exp.push_back(statistics[i] - std::log(statistics[i + 1]));
  }
  return want;
}

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

template <class E>
struct Got {
  std::vector<E> output;
  std::vector<float> log_sum_exp;
  std::vector<E> grad_qkv;
};

template <class E>
Got<E> run(const std::vector<E>& qkv, const std::vector<E>& grad_output, const Case& c, comm::Stream& stream,
           const DropoutMask& dropout = {}) {
  const AttentionShape& shape = c.shape;
  const std::int64_t rows = shape.batch * shape.length * shape.heads;
  DeviceArray<E> device_qkv(qkv, stream, c.start);
  DeviceArray<E> device_grad(grad_output, stream, c.start);
  DeviceArray<E> output = poisoned<E>(grad_output.size(), stream, c.start);
  DeviceArray<float> log_sum_exp = poisoned<float>(rows, stream);
  DeviceArray<E> grad_qkv = poisoned<E>(qkv.size(), stream, c.start);
  DeviceArray<float> scratch = poisoned<float>(rows, stream);
  attention_forward<E>(device_qkv.read(), shape, log_sum_exp.elems(), output.elems(), stream, dropout);
  attention_backward<E>(device_grad.read(), device_qkv.read(), output.read(), log_sum_exp.read(), shape,
                        grad_qkv.elems(), scratch.elems(), stream, dropout);
  return {output.values(), log_sum_exp.values(), grad_qkv.values()};
}

/// Float: sums of up to 256 products and 130 exponentials. bfloat16 rounds each result once more, and tensor cores
/// round each probability and each score's gradient, and the output from which the backward pass takes delta: three
/// roundings of terms that are no larger than the largest result.
template <class E>
double noise_of(const std::vector<double>& want) {
  return largest_of(want) * (std::is_same_v<E, float> ? 1e-5 : 3 * kRounding<Bf16>);
}

TYPED_TEST(AttentionCuda, ForwardAndBackwardInAllForms) {
  using E = TypeParam;
  for (const Case& c : kCases) {
    const std::int64_t elems = c.shape.batch * c.shape.length * c.shape.heads * c.shape.head_width;
    const auto qkv = random_elems<E>(1, 3 * elems, 3);
    const auto grad_output = random_elems<E>(2, elems);
    const Expected want = expected(qkv, grad_output, c.shape);
    const Got<E> got = run(qkv, grad_output, c, this->stream());
    expect_close(got.output, want.output, noise_of<E>(want.output), 1.01, text_of(c.shape) + " output");
    // Scores are sums of at most 256 products of size 2.
    expect_close(got.log_sum_exp, want.log_sum_exp, 1e-4, 4, text_of(c.shape) + " log_sum_exp");
    expect_close(got.grad_qkv, want.grad_qkv, noise_of<E>(want.grad_qkv), 1.01, text_of(c.shape) + " grad_qkv");
    // A second run has the same bits: no sum depends on the order of the threads.
    const Got<E> again = run(qkv, grad_output, c, this->stream());
    EXPECT_EQ(bytes_of(again.output), bytes_of(got.output));
    EXPECT_EQ(bytes_of(again.grad_qkv), bytes_of(got.grad_qkv));
  }
}

// Keys begin within a group of 64 draws, and at the beginning of one.
TYPED_TEST(AttentionCuda, DropsTheProbabilitiesOfTheHost) {
  using E = TypeParam;
  DropoutMask dropout = dropout_of_keys(0.3);
  for (const std::int64_t first_position : {dropout.first_position, std::int64_t{0}}) {
    dropout.first_position = first_position;
    for (const Case& c : kCases) {
      const std::int64_t elems = c.shape.batch * c.shape.length * c.shape.heads * c.shape.head_width;
      const auto qkv = random_elems<E>(1, 3 * elems, 3);
      const auto grad_output = random_elems<E>(2, elems);
      const Expected want = expected(qkv, grad_output, c.shape, dropout);
      const Got<E> got = run(qkv, grad_output, c, this->stream(), dropout);
      expect_close(got.output, want.output, noise_of<E>(want.output), 1.01, text_of(c.shape) + " output");
      expect_close(got.log_sum_exp, want.log_sum_exp, 1e-4, 4, text_of(c.shape) + " log_sum_exp");
      expect_close(got.grad_qkv, want.grad_qkv, noise_of<E>(want.grad_qkv), 1.01, text_of(c.shape) + " grad_qkv");
    }
  }
}

TYPED_TEST(AttentionCuda, ScoresThatRiseFromTileToTile) {
  using E = TypeParam;
  // Each tile of 64 keys scores about 40 above the one before it: exponentials relative to the first one would be
  // infinite. The other head's scores fall.
  for (const std::int64_t width : {8, 64, 128}) {
    const Case c{{1, 200, 2, width}};
    const std::int64_t elems = 200 * 2 * width;
    auto qkv = random_elems<E>(1, 3 * elems);
    for (std::int64_t t = 0; t < 200; ++t) {
      for (std::int64_t h = 0; h < 2; ++h) {
        const double per_tile = 40 / std::sqrt(static_cast<double>(width)) * (h == 0 ? 1 : -1);
        for (std::int64_t d = 0; d < width; ++d) {
          E& q = qkv[((t * 3 + 0) * 2 + h) * width + d];
          E& k = qkv[((t * 3 + 1) * 2 + h) * width + d];
          q = to_elem<E>(1);
          k = to_elem<E>(per_tile * static_cast<double>(t / 64) + static_cast<double>(to_float(k)) / 4);
        }
      }
    }
    const auto grad_output = random_elems<E>(2, elems);
    const Expected want = expected(qkv, grad_output, c.shape);
    const Got<E> got = run(qkv, grad_output, c, this->stream());
    expect_close(got.output, want.output, noise_of<E>(want.output), 1.01, text_of(c.shape) + " output");
    // Scores of 120 carry the rounding of their size.
    expect_close(got.log_sum_exp, want.log_sum_exp, 1e-4, 16, text_of(c.shape) + " log_sum_exp");
    expect_close(got.grad_qkv, want.grad_qkv, 2 * noise_of<E>(want.grad_qkv), 1.01, text_of(c.shape) + " grad_qkv");
  }
}

TYPED_TEST(AttentionCuda, DoesNotSeeTheFuture) {
  using E = TypeParam;
  for (const std::int64_t width : {4, 64}) {
    const Case c{{1, 70, 2, width}};
    const std::int64_t row = 3 * 2 * width;
    auto qkv = random_elems<E>(1, 70 * row);
    const auto grad_output = random_elems<E>(2, 70 * row / 3);
    const Got<E> before = run(qkv, grad_output, c, this->stream());
    for (std::size_t i = static_cast<std::size_t>(66 * row); i < qkv.size(); ++i) qkv[i] = to_elem<E>(3);
    const Got<E> after = run(qkv, grad_output, c, this->stream());
    for (std::int64_t i = 0; i < 66 * row / 3; ++i) {
      ASSERT_EQ(to_float(after.output[i]), to_float(before.output[i])) << "width " << width << " element " << i;
    }
    EXPECT_NE(to_float(after.output[66 * row / 3]), to_float(before.output[66 * row / 3]));
  }
}

TYPED_TEST(AttentionCuda, RefusesWidthsAndRangesThatDoNotFit) {
  using E = TypeParam;
  DeviceArray<E> elems = poisoned<E>(3 * 300, this->stream());
  DeviceArray<float> rows = poisoned<float>(300, this->stream());
  const auto call = [&](const AttentionShape& shape) {
    attention_forward<E>(elems.read(), shape, rows.elems(), elems.elems(), this->stream());
  };
  EXPECT_THROW(call({1, 1, 1, 257}), CheckError);
  EXPECT_THROW(call({1, 1, 1, 0}), CheckError);
  EXPECT_THROW(call({1, 2, 1, 256}), CheckError);
}

}  // namespace
}  // namespace droptest::models::attention_cuda_test
