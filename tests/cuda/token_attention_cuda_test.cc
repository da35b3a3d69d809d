// SPDX-License-Identifier: Apache-2.0
// Attention between any tokens on a device, against the CPU twin in double.
#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "models/attention/device_token_attention.h"
#include "models/attention/dilated_plan.h"
#include "models/attention/token_attention.h"
#include "models/kernels/chunks.h"
#include "tests/cuda/device_kernels.h"
#include "tests/models/dropout_draws.h"

namespace droptest::models::token_attention_cuda_test {
namespace {

template <class E>
class TokenAttentionCuda : public DeviceTest {};
TYPED_TEST_SUITE(TokenAttentionCuda, DeviceElementTypes);

struct Case {
  const char* name;
  HeadShape queries;
  std::int64_t keys = 0;  ///< tokens
  std::int64_t positions = 0;
  Causality causality = Causality::kCausal;
  /// One attention continues the other.
  std::vector<AttentionPattern> patterns{};
  bool documents = false;
  bool added = false;
  bool absent = false;
};

/// Every third token of each segment of 10, from another one for each head.
AttentionPattern dilated(std::int64_t tokens, std::int64_t heads) {
  return dilated_plan({10, 3}, SequenceParts::even(tokens, 1), 0, 1, heads, Causality::kCausal).local;
}

// Token counts about the tiles of 16, 32 and 64; widths of each form.
std::vector<Case> cases() {
  const auto whole = [](std::int64_t count) { return pattern_of({{0, count, 0}}, {{0, count, 0}}); };
  return {
      {"causal", {2, 70, 2, 5}, 70, 70, Causality::kCausal, {whole(70)}},
      {"documents", {2, 130, 1, 64}, 130, 130, Causality::kCausal, {whole(130)}, true},
      {"documents of wide heads", {1, 40, 2, 200}, 40, 40, Causality::kAny, {whole(40)}, true},
      {"one token", {1, 1, 1, 3}, 1, 1, Causality::kCausal, {whole(1)}},
      {"no token", {2, 0, 2, 8}, 0, 4, Causality::kCausal, {whole(0)}},
      {"no sequence", {0, 5, 2, 8}, 5, 5, Causality::kCausal, {whole(5)}},
      {"queries before all keys", {1, 20, 1, 4}, 9, 40, Causality::kCausal, {pattern_of({{0, 20, 0}}, {{0, 9, 20}})}},
      // A zigzag ring: two runs of queries and of keys, the rank's own part first.
      {"ring",
       {2, 90, 2, 16},
       80,
       170,
       Causality::kCausal,
       {pattern_of({{0, 40, 10}, {40, 50, 110}}, {{10, 70, 30}}),
        pattern_of({{0, 40, 10}, {40, 50, 110}}, {{0, 10, 2, 1, 3}})}},
      {"absent keys",
       {2, 33, 2, 80},
       50,
       83,
       Causality::kAny,
       {pattern_of({{0, 33, 50}}, {{0, 50, 0}})},
       false,
       true,
       true},
      {"dilated", {2, 64, 4, 8}, 64, 64, Causality::kCausal, {dilated(64, 4), whole(64)}, true},
      {"dilated, wide", {1, 35, 3, 130}, 35, 35, Causality::kCausal, {dilated(35, 3)}},
  };
}

/// [tokens, batch, heads, width] with gaps, as in packed rows.
struct Strides {
  std::int64_t batch, token, head;
  explicit Strides(const HeadShape& s) : batch(s.heads * s.width + 3), token(s.batch * batch + 1), head(s.width) {}
  static std::int64_t elems(const HeadShape& s) { return s.tokens * Strides(s).token; }
};
template <class T>
HeadView<T> on_host(std::vector<std::remove_const_t<T>>& elems, const HeadShape& s) {
  const Strides strides(s);
  return {elems.data(), s, strides.batch, strides.token, strides.head};
}
template <class E>
DeviceHeadView<E> on_device(DeviceArray<E>& elems, const HeadShape& s) {
  const Strides strides(s);
  return {elems.elems(), s, strides.batch, strides.token, strides.head};
}

struct Expected {
  std::vector<double> output, log_sum_exp, grad_queries, grad_keys, grad_values;
};
template <class E>
struct Got {
  std::vector<E> output;
  std::vector<float> log_sum_exp;
  std::vector<E> grad_queries, grad_keys, grad_values;
};

template <class E>
struct Inputs {
  HeadShape of_queries, of_keys;
  std::vector<E> q, k, v, grad, before_q, before_k, before_v;
  std::vector<float> grad_log_sum_exp, added;
  std::vector<std::int32_t> documents;
  std::vector<std::uint8_t> absent;

  explicit Inputs(const Case& c) : of_queries(c.queries), of_keys(c.queries) {
    of_keys.tokens = c.keys;
    const std::int64_t n = Strides::elems(of_queries);
    const std::int64_t m = Strides::elems(of_keys);
    q = random_elems<E>(1, n, 3);
    k = random_elems<E>(2, m, 3);
    v = random_elems<E>(3, m);
    grad = random_elems<E>(4, n);
    before_q = random_elems<E>(5, n, 0.5);
    before_k = random_elems<E>(6, m, 0.5);
    before_v = random_elems<E>(7, m, 0.5);
    grad_log_sum_exp = random_elems<float>(8, c.queries.batch * c.queries.heads * c.queries.tokens);
    const std::int64_t positions = c.queries.batch * c.positions;
    for (std::int64_t i = 0; c.documents && i < positions; ++i) {
      documents.push_back(i % 11 == 10 ? -1 : static_cast<std::int32_t>(i / 7));
    }
    if (c.added) added = random_elems<float>(9, positions * c.positions);
    for (std::size_t i = 0; i < added.size(); i += 5) added[i] = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; c.absent && i < c.keys * c.queries.batch * c.queries.heads; ++i) {
      absent.push_back(i % 3 == 0 ? 1 : 0);
    }
  }
};

template <class E>
Expected expected(const Case& c, const Inputs<E>& in, const DropoutMask& dropout) {
  const SingleThreadedLibraries single_threaded;
  std::vector<double> q = as<double>(in.q), k = as<double>(in.k), v = as<double>(in.v), grad = as<double>(in.grad);
  Expected want{std::vector<double>(q.size()), std::vector<double>(in.grad_log_sum_exp.size()), as<double>(in.before_q),
                as<double>(in.before_k), as<double>(in.before_v)};
  std::vector<MaskArray> arrays;
  if (c.added) arrays.push_back({MaskArray::Axes::kBatchQueriesKeys, std::span<const float>(in.added)});
  const AttentionMask mask =
      c.added || c.documents
          ? AttentionMask(c.causality, {c.queries.batch, c.positions, c.positions}, arrays, in.documents)
          : AttentionMask(c.causality);
  std::vector<double> scratch(token_attention_scratch_elems(c.queries.width, 1));
  const AttentionInputs<double> inputs{on_host<const double>(q, in.of_queries),
                                       on_host<const double>(k, in.of_keys),
                                       on_host<const double>(v, in.of_keys),
                                       mask,
                                       in.absent,
                                       dropout};
  const auto output = on_host<double>(want.output, in.of_queries);
  begin_attention(output, std::span(want.log_sum_exp));
  for (const AttentionPattern& pattern : c.patterns) {
    attend(inputs, pattern, output, std::span(want.log_sum_exp), std::span(scratch), 1);
  }
  const std::vector<double> grad_log_sum_exp = as<double>(in.grad_log_sum_exp);
  for (const AttentionPattern& pattern : c.patterns) {
    attend_backward(inputs, pattern,
                    AttentionResults<double>{output, want.log_sum_exp, on_host<const double>(grad, in.of_queries),
                                             grad_log_sum_exp},
                    AttentionGradients<double>{on_host<double>(want.grad_queries, in.of_queries),
                                               on_host<double>(want.grad_keys, in.of_keys),
                                               on_host<double>(want.grad_values, in.of_keys)},
                    std::span(scratch), 1);
  }
  return want;
}

/// Positions of patterns that count from other ones than 0.
struct Origin {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};
AttentionPattern counted_from(const Origin& origin, AttentionPattern pattern) {
  for (std::vector<AttentionBlock>& of_head : pattern) {
    for (AttentionBlock& block : of_head) {
      for (TokenRun& run : block.queries) run.position -= origin.queries;
      for (TokenRun& run : block.keys) run.position -= origin.keys;
    }
  }
  return pattern;
}

template <class E>
Got<E> run(const Case& c, const Inputs<E>& in, const DropoutMask& dropout, comm::Stream& stream,
           const Origin& origin = {}) {
  DeviceArray<E> q(in.q, stream), k(in.k, stream), v(in.v, stream), grad(in.grad, stream);
  DeviceArray<E> grad_q(in.before_q, stream), grad_k(in.before_k, stream), grad_v(in.before_v, stream);
  DeviceArray<float> grad_log_sum_exp(in.grad_log_sum_exp, stream), added(in.added, stream);
  DeviceArray<std::int32_t> documents(in.documents, stream);
  DeviceArray<std::uint8_t> absent(in.absent, stream);
  // Between the heads are numbers that must stay.
  DeviceArray<E> output(std::vector<E>(in.q.size(), to_elem<E>(0)), stream);
  DeviceArray<float> log_sum_exp = poisoned<float>(in.grad_log_sum_exp.size(), stream);
  DeviceArray<float> scratch = poisoned<float>(in.grad_log_sum_exp.size(), stream);
  const DeviceAttentionInputs<E> inputs{on_device(q, in.of_queries),
                                        on_device(k, in.of_keys),
                                        on_device(v, in.of_keys),
                                        {c.causality, c.positions, documents.read(), added.read()},
                                        absent.read(),
                                        dropout,
                                        origin.queries,
                                        origin.keys};
  const DeviceHeadView<E> out = on_device(output, in.of_queries);
  begin_attention(out, log_sum_exp.elems(), stream);
  std::vector<DeviceAttentionPattern> patterns;
  for (const AttentionPattern& pattern : c.patterns) {
    patterns.emplace_back(counted_from(origin, pattern), c.queries.heads, c.queries.width, stream);
  }
  for (const DeviceAttentionPattern& pattern : patterns) attend(inputs, pattern, out, log_sum_exp.elems(), stream);
  for (const DeviceAttentionPattern& pattern : patterns) {
    attend_backward(
        inputs, pattern,
        DeviceAttentionResults<E>{out, log_sum_exp.read(), on_device(grad, in.of_queries), grad_log_sum_exp.read()},
        DeviceAttentionGradients<E>{on_device(grad_q, in.of_queries), on_device(grad_k, in.of_keys),
                                    on_device(grad_v, in.of_keys)},
        scratch.elems(), stream);
  }
  return {output.values(), log_sum_exp.values(), grad_q.values(), grad_k.values(), grad_v.values()};
}

/// Float: sums of up to 200 products and 170 exponentials. bfloat16 rounds the running output of each attention, and
/// gradients as often as they are added to.
template <class E>
double noise_of(const std::vector<double>& want) {
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  return largest * (std::is_same_v<E, float> ? 1e-5 : 4 * kRounding<Bf16>);
}

template <class E>
void expect_the_cpu(const DropoutMask& dropout, comm::Stream& stream) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Inputs<E> in(c);
    const Expected want = expected(c, in, dropout);
    const Got<E> got = run(c, in, dropout, stream);
    expect_close(got.output, want.output, noise_of<E>(want.output), 1.01, "output");
    for (std::size_t i = 0; i < want.log_sum_exp.size(); ++i) {
      if (std::isinf(want.log_sum_exp[i])) {
        EXPECT_EQ(got.log_sum_exp[i], -std::numeric_limits<float>::infinity()) << i;
      } else {
        EXPECT_NEAR(got.log_sum_exp[i], want.log_sum_exp[i], 1e-4) << i;
      }
    }
    expect_close(got.grad_queries, want.grad_queries, noise_of<E>(want.grad_queries), 1.01, "gradient of queries");
    expect_close(got.grad_keys, want.grad_keys, noise_of<E>(want.grad_keys), 1.01, "gradient of keys");
    expect_close(got.grad_values, want.grad_values, noise_of<E>(want.grad_values), 1.01, "gradient of values");
    // A second run has the same bits: no sum depends on the order of the threads.
    const Got<E> again = run(c, in, dropout, stream);
    EXPECT_EQ(bytes_of(again.output), bytes_of(got.output));
    EXPECT_EQ(bytes_of(again.grad_queries), bytes_of(got.grad_queries));
    EXPECT_EQ(bytes_of(again.grad_keys), bytes_of(got.grad_keys));
  }
}

TYPED_TEST(TokenAttentionCuda, ForwardAndBackwardEqualTheCpu) { expect_the_cpu<TypeParam>({}, this->stream()); }

TYPED_TEST(TokenAttentionCuda, DropsTheProbabilitiesOfTheCpu) {
  expect_the_cpu<TypeParam>(dropout_of_keys(0.3), this->stream());
}

TYPED_TEST(TokenAttentionCuda, PositionsOfPatternsCountFromWhereTheCallSays) {
  using E = TypeParam;
  const DropoutMask dropout = dropout_of_keys(0.3);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Inputs<E> in(c);
    const Got<E> want = run(c, in, dropout, this->stream());
    const Got<E> got = run(c, in, dropout, this->stream(), {20, 7});
    EXPECT_EQ(bytes_of(got.output), bytes_of(want.output));
    EXPECT_EQ(bytes_of(got.log_sum_exp), bytes_of(want.log_sum_exp));
    EXPECT_EQ(bytes_of(got.grad_queries), bytes_of(want.grad_queries));
    EXPECT_EQ(bytes_of(got.grad_keys), bytes_of(want.grad_keys));
    EXPECT_EQ(bytes_of(got.grad_values), bytes_of(want.grad_values));
  }
}

TYPED_TEST(TokenAttentionCuda, RefusesAPatternThatTheKernelsDoNotTake) {
  const AttentionBlock first{{{0, 2, 0}}, {{0, 4, 0}}};
  const AttentionBlock second{{{2, 2, 2}}, {{3, 1, 3}}};
  const AttentionPattern twice(1, {first, second});
  EXPECT_THROW(DeviceAttentionPattern(twice, 2, 8, this->stream()), CheckError);
  EXPECT_THROW(DeviceAttentionPattern(pattern_of({{0, 1, 0}}, {{0, 1, 0}}), 2, 257, this->stream()), CheckError);
}

}  // namespace
}  // namespace droptest::models::token_attention_cuda_test
