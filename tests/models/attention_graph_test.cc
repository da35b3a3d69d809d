// SPDX-License-Identifier: Apache-2.0
// Interprets the graphs of attention, and compares the results with the reference in double.
#include "models/kernels/attention_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "models/kernels/chunks.h"
#include "models/kernels/cudnn_attention.h"
#include "sim/error.h"
#include "tests/models/attention_graph_interpreter.h"
#include "tests/models/kernel_numbers.h"

namespace droptest::models::attention_graph_test {
namespace {

/// kUnit: the largest relative error of rounding to E.
template <class E>
struct Rounding;
template <>
struct Rounding<comm::Bf16> {
  static constexpr double kUnit = 0x1p-8;
  static comm::Bf16 of(double value) { return comm::to_bf16(static_cast<float>(value)); }
};
template <>
struct Rounding<comm::Fp16> {
  static constexpr double kUnit = 0x1p-11;
  static comm::Fp16 of(double value) { return comm::to_fp16(static_cast<float>(value)); }
};

template <class E>
class AttentionGraphs : public testing::Test {};
using NarrowTypes = testing::Types<comm::Bf16, comm::Fp16>;
TYPED_TEST_SUITE(AttentionGraphs, NarrowTypes);

template <class E>
std::vector<E> rounded(const std::vector<double>& values) {
  std::vector<E> result;
  for (const double value : values) result.push_back(Rounding<E>::of(value));
  return result;
}
template <class E>
std::vector<double> doubles(const std::vector<E>& values) {
  std::vector<double> result;
  for (const E value : values) result.push_back(to_float(value));
  return result;
}

/// Elements at an address that is a multiple of 16, followed by a few guard elements that a pass must not touch.
template <class E>
class Array {
 public:
  explicit Array(std::size_t elems)
      : elems_(elems), bytes_((elems + kMargin) * sizeof(E) + AttentionGraph::kAlignmentBytes) {
    std::fill(data(), data() + elems + kMargin, unset());
  }
  explicit Array(const std::vector<E>& values) : Array(values.size()) { std::ranges::copy(values, data()); }

  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(const_cast<Array*>(this)->data()); }
  std::vector<E> values() {
    for (std::size_t i = elems_; i < elems_ + kMargin; ++i)
      EXPECT_TRUE(std::isnan(static_cast<float>(number(data()[i]))));
    return {data(), data() + elems_};
  }

 private:
  static constexpr std::size_t kMargin = 32;
  static double number(E value) {
    if constexpr (std::is_same_v<E, float>) return value;
    if constexpr (!std::is_same_v<E, float>) return to_float(value);
  }
  static E unset() {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    if constexpr (std::is_same_v<E, float>) return static_cast<float>(kNan);
    if constexpr (!std::is_same_v<E, float>) return Rounding<E>::of(kNan);
  }
  E* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    const std::uintptr_t gap =
        (AttentionGraph::kAlignmentBytes - address % AttentionGraph::kAlignmentBytes) % AttentionGraph::kAlignmentBytes;
    return reinterpret_cast<E*>(bytes_.data() + gap);
  }

  std::size_t elems_;
  std::vector<std::byte> bytes_;
};

template <class E>
struct Results {
  std::vector<E> output;
  std::vector<float> log_sum_exp;
  std::vector<E> grad_qkv;
};

/// Both passes, `sequences` of the batch at a time.
template <class E>
Results<E> run(const std::vector<E>& qkv, const std::vector<E>& grad_output, const AttentionShape& shape,
               std::int64_t sequences) {
  const Array<E> input(qkv);
  const Array<E> gradient(grad_output);
  Array<E> output(grad_output.size());
  Array<float> log_sum_exp(static_cast<std::size_t>(shape.batch * shape.heads * shape.length));
  Array<E> grad_qkv(qkv.size());
  const AttentionArrays arrays = {input.bytes(), output.bytes(), log_sum_exp.bytes(), gradient.bytes(),
                                  grad_qkv.bytes()};
  for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
    for (std::int64_t first = 0; first < shape.batch; first += sequences) {
      AttentionShape part = shape;
      part.batch = std::min(sequences, shape.batch - first);
      interpret_attention(attention_graph(pass, part, comm::element_type_of<E>()), arrays, first);
    }
  }
  return {output.values(), log_sum_exp.values(), grad_qkv.values()};
}

template <class E>
Results<double> expected(const std::vector<E>& qkv, const std::vector<E>& grad_output, const AttentionShape& shape) {
  const SingleThreadedLibraries single_threaded;
  const std::vector<double> x = doubles(qkv);
  std::vector<double> statistics(attention_statistics_elems(shape));
  std::vector<double> scratch(attention_scratch_elems(shape, 1));
  Results<double> want{std::vector<double>(grad_output.size()), {}, std::vector<double>(qkv.size())};
  attention_forward<double>(x, shape, statistics, want.output, scratch, 1);
  attention_backward<double>(doubles(grad_output), x, statistics, shape, want.grad_qkv, scratch, 1);
  for (std::size_t i = 0; i < statistics.size(); i += 2) {
    want.log_sum_exp.push_back(static_cast<float>(statistics[i] - std::log(statistics[i + 1])));
  }
  return want;
}

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double bound,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << what << ", element " << i;
}

const std::vector<AttentionShape> kShapes = {{1, 1, 1, 8},   {2, 1, 3, 16}, {3, 7, 2, 24},  {2, 65, 3, 40},
                                             {1, 67, 1, 64}, {5, 3, 1, 8},  {2, 33, 2, 128}};

// A result is rounded once; the backward pass reads the rounded output, so that gradients have a second rounding.
TYPED_TEST(AttentionGraphs, DescribeAttentionOnPackedRows) {
  using E = TypeParam;
  for (const AttentionShape& shape : kShapes) {
    const std::int64_t elems = shape.batch * shape.length * shape.heads * shape.head_width;
    const auto qkv = rounded<E>(numbers<double>(1, 3 * elems));
    const auto grad_output = rounded<E>(numbers<double>(2, elems));
    const Results<double> want = expected(qkv, grad_output, shape);
    const Results<E> got = run(qkv, grad_output, shape, shape.batch);
    const std::string text = "B " + std::to_string(shape.batch) + " T " + std::to_string(shape.length) + " NH " +
                             std::to_string(shape.heads) + " D " + std::to_string(shape.head_width);
    const double unit = Rounding<E>::kUnit;
    expect_near(doubles(got.output), want.output, unit * largest_of(want.output), text + " output");
    expect_near({got.log_sum_exp.begin(), got.log_sum_exp.end()}, {want.log_sum_exp.begin(), want.log_sum_exp.end()},
                1e-5, text + " log-sum-exp");
    expect_near(doubles(got.grad_qkv), want.grad_qkv, 2 * unit * largest_of(want.grad_qkv), text + " grad_qkv");
  }
}

TYPED_TEST(AttentionGraphs, PartsOfABatchGiveTheBitsOfTheWhole) {
  using E = TypeParam;
  for (const AttentionShape& shape : kShapes) {
    const std::int64_t elems = shape.batch * shape.length * shape.heads * shape.head_width;
    const auto qkv = rounded<E>(numbers<double>(1, 3 * elems));
    const auto grad_output = rounded<E>(numbers<double>(2, elems));
    const Results<E> whole = run(qkv, grad_output, shape, shape.batch);
    const Results<E> parts = run(qkv, grad_output, shape, attention_graph_cut(shape));
    EXPECT_EQ(doubles(parts.output), doubles(whole.output));
    EXPECT_EQ(parts.log_sum_exp, whole.log_sum_exp);
    EXPECT_EQ(doubles(parts.grad_qkv), doubles(whole.grad_qkv));
  }
}

TEST(AttentionGraph, CutsABatchWhereStatisticsAreAligned) {
  EXPECT_EQ(attention_graph_cut({64, 1024, 12, 64}), 1);
  EXPECT_EQ(attention_graph_cut({64, 3, 2, 64}), 2);
  EXPECT_EQ(attention_graph_cut({64, 7, 1, 64}), 4);
}

TEST(AttentionGraph, TakesNarrowNumbersInWholeVectors) {
  using enum comm::ElementType;
  for (const std::int64_t width : {8, 64, 72, 128}) {
    EXPECT_TRUE(attention_graph_takes(width, kBfloat16)) << width;
    EXPECT_TRUE(attention_graph_takes(width, kFloat16)) << width;
    EXPECT_FALSE(attention_graph_takes(width, kFloat32)) << width;
  }
  for (const std::int64_t width : {0, 4, 63, 100, 136}) EXPECT_FALSE(attention_graph_takes(width, kBfloat16)) << width;
  EXPECT_THROW(attention_graph(AttentionPass::kForward, {1, 4, 1, 4}, kBfloat16), CheckError);
  EXPECT_THROW(attention_graph(AttentionPass::kForward, {0, 4, 1, 8}, kBfloat16), CheckError);
}

// Two runs of a step have the same bits only with deterministic passes.
TEST(AttentionGraph, IsDeterministic) {
  for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
    EXPECT_TRUE(attention_graph(pass, {2, 5, 3, 8}, comm::ElementType::kBfloat16).deterministic);
  }
}

// The checks of the frontend need no device; here they are made for an A100 and an H100.
TEST(CudnnGraphs, TheFrontendTakesThem) {
  if (const std::string absence = cudnn_library().absence; !absence.empty()) GTEST_SKIP() << absence;
  for (const AttentionShape& shape : {AttentionShape{4, 1024, 12, 64}, AttentionShape{1, 67, 3, 8},
                                      AttentionShape{3, 130, 1, 128}, AttentionShape{2, 16, 4, 24}}) {
    for (const AttentionPass pass : {AttentionPass::kForward, AttentionPass::kBackward}) {
      for (const comm::ElementType type : {comm::ElementType::kBfloat16, comm::ElementType::kFloat16}) {
        for (const int capability : {80, 90}) {
          EXPECT_EQ(cudnn_objection(attention_graph(pass, shape, type), capability), "") << shape.head_width;
        }
      }
    }
  }
}

TEST(CudnnGraphs, TheFrontendSaysWhatItDoesNotTake) {
  if (const std::string absence = cudnn_library().absence; !absence.empty()) GTEST_SKIP() << absence;
  AttentionGraph graph = attention_graph(AttentionPass::kForward, {2, 16, 4, 64}, comm::ElementType::kBfloat16);
  graph.queries.dims[3] = graph.keys.dims[3] = 12;
  EXPECT_NE(cudnn_objection(graph, 90).find("hidden_dim"), std::string::npos) << cudnn_objection(graph, 90);
}

}  // namespace
}  // namespace droptest::models::attention_graph_test
