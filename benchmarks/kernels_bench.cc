// SPDX-License-Identifier: Apache-2.0
// The CPU kernels at the shapes of one rank of GPT-2 124M and of `nano`, on one and on two threads. This file has loops
// over elements, compared with a memcpy of as many bytes on as many threads, and with their naive twins on one thread.
// GEMMs are in kernel_products_bench.cc. Ratios are ratios of rates: above 1, the kernel is faster. kernels_bench
// --benchmark_format=json also prints the machine; --benchmark_filter selects kernels.
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/kernel_shapes.h"
#include "benchmarks/naive_kernels.h"
#include "benchmarks/turns.h"
#include "models/kernels/adamw.h"
#include "models/kernels/cross_entropy.h"
#include "models/kernels/embedding.h"
#include "models/kernels/gelu.h"
#include "models/kernels/layernorm.h"
#include "models/kernels/narrow_floats.h"
#include "models/kernels/residual.h"
#include "models/process_settings.h"

namespace droptest::benchmarks {
namespace {

using benchmark::State;
using models::Team;
using Tokens = std::vector<std::int32_t>;

/// Different numbers for each `which`.
Floats values(std::int64_t count, int which) { return numbers(static_cast<std::size_t>(count), 0.137 * which); }
Floats zeros(std::int64_t count) { return Floats(static_cast<std::size_t>(count)); }

/// Tokens from the whole vocabulary; if there are many, some occur twice.
Tokens tokens_of(std::int64_t rows, std::int64_t vocabulary) {
  constexpr std::int64_t kStep = 7919;
  Tokens tokens;
  for (std::int64_t i = 0; i < rows; ++i) tokens.push_back(static_cast<std::int32_t>(i * kStep % vocabulary));
  return tokens;
}

comm::Tensor tensor(Floats& values) { return std::span<float>(values); }

double elems(std::int64_t count) { return static_cast<double>(count); }

void layernorm_forward(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  enum { kInput, kGain, kBias, kOutput, kMean, kDeviation };
  const std::int64_t all = s.rows() * s.width;
  const auto kernel = [&](Tensors& t) {
    models::layernorm_forward<float>({tensor(t[kInput]),
                                      {},
                                      {},
                                      tensor(t[kGain]),
                                      tensor(t[kBias]),
                                      s.rows(),
                                      s.width,
                                      {},
                                      tensor(t[kOutput]),
                                      tensor(t[kMean]),
                                      tensor(t[kDeviation])},
                                     team);
  };
  const auto naive = [](Tensors& t) {
    naive::layernorm_forward(t[kInput], t[kGain], t[kBias], t[kOutput], t[kMean], t[kDeviation]);
  };
  compare_with_memcpy(
      state, {values(all, 0), values(s.width, 1), values(s.width, 2), zeros(all), zeros(s.rows()), zeros(s.rows())},
      {kernel, naive, elems(2 * all)}, team);
}

void residual_layernorm_forward(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  enum { kResidual, kBranch, kBranchBias, kGain, kBias, kStream, kOutput, kMean, kDeviation };
  const std::int64_t all = s.rows() * s.width;
  const auto kernel = [&](Tensors& t) {
    models::layernorm_forward<float>(
        {tensor(t[kResidual]), tensor(t[kBranch]), tensor(t[kBranchBias]), tensor(t[kGain]), tensor(t[kBias]), s.rows(),
         s.width, tensor(t[kStream]), tensor(t[kOutput]), tensor(t[kMean]), tensor(t[kDeviation])},
        team);
  };
  const auto naive = [](Tensors& t) {
    naive::residual_layernorm_forward(t[kResidual], t[kBranch], t[kBranchBias], t[kGain], t[kBias], t[kStream],
                                      t[kOutput], t[kMean], t[kDeviation]);
  };
  compare_with_memcpy(state,
                      {values(all, 0), values(all, 1), values(s.width, 2), values(s.width, 3), values(s.width, 4),
                       zeros(all), zeros(all), zeros(s.rows()), zeros(s.rows())},
                      {kernel, naive, elems(4 * all)}, team);
}

void layernorm_backward(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  enum { kGradOutput, kInput, kGain, kMean, kDeviation, kGradInput, kGradGain, kGradBias };
  const std::int64_t all = s.rows() * s.width;
  const auto kernel = [&](Tensors& t) {
    models::layernorm_backward<float>({tensor(t[kGradOutput]),
                                       tensor(t[kInput]),
                                       tensor(t[kMean]),
                                       tensor(t[kDeviation]),
                                       tensor(t[kGain]),
                                       s.rows(),
                                       s.width,
                                       tensor(t[kGradInput]),
                                       tensor(t[kGradInput]),
                                       tensor(t[kGradGain]),
                                       tensor(t[kGradBias]),
                                       {},
                                       models::GradientMode::kAdd,
                                       {}},
                                      team);
  };
  const auto naive = [](Tensors& t) {
    naive::layernorm_backward(t[kGradOutput], t[kInput], t[kGain], t[kMean], t[kDeviation], t[kGradInput], t[kGradGain],
                              t[kGradBias]);
  };
  compare_with_memcpy(state,
                      {values(all, 0), values(all, 1), values(s.width, 2), values(s.rows(), 3), values(s.rows(), 4),
                       zeros(all), zeros(s.width), zeros(s.width)},
                      {kernel, naive, elems(4 * all)}, team);
}

void bias_gelu_forward(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  enum { kBias, kValues, kOutput };
  const std::int64_t all = s.rows() * s.hidden();
  const auto kernel = [&](Tensors& t) {
    models::bias_gelu_forward<float>(t[kBias], s.rows(), t[kValues], t[kOutput], team);
  };
  const auto naive = [](Tensors& t) { naive::bias_gelu_forward(t[kBias], t[kValues], t[kOutput]); };
  compare_with_memcpy(state, {values(s.hidden(), 0), values(all, 1), zeros(all)}, {kernel, naive, elems(3 * all)},
                      team);
}

void bias_gelu_backward(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  enum { kSlopes, kGradient, kGradBias };
  const std::int64_t all = s.rows() * s.hidden();
  const auto kernel = [&](Tensors& t) {
    models::bias_gelu_backward<float>(t[kSlopes], s.rows(), t[kGradient], t[kGradBias], team);
  };
  const auto naive = [](Tensors& t) { naive::bias_gelu_backward(t[kSlopes], t[kGradient], t[kGradBias]); };
  // Repeated multiplication by derivatives below 1 would end in subnormal numbers.
  const auto settle = [all](Tensors& t) {
    t[kSlopes].assign(t[kSlopes].size(), -1.0F);
    t[kGradient] = values(all, 1);
  };
  compare_with_memcpy(state, {values(all, 0), values(all, 1), zeros(s.hidden())},
                      {kernel, naive, elems(3 * all), settle}, team);
}

void fill_rows(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  const auto kernel = [&](Tensors& t) { models::fill_rows<float>(t[0], s.rows(), t[1], team); };
  const auto naive = [](Tensors& t) { naive::fill_rows(t[0], t[1]); };
  const std::int64_t all = s.rows() * 3 * s.width;
  compare_with_memcpy(state, {values(3 * s.width, 0), zeros(all)}, {kernel, naive, elems(all)}, team);
}

void add_column_sums(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  const auto kernel = [&](Tensors& t) { models::add_column_sums<float>(t[0], s.rows(), t[1], team); };
  const auto naive = [](Tensors& t) { naive::add_column_sums(t[0], t[1]); };
  const std::int64_t all = s.rows() * 3 * s.width;
  compare_with_memcpy(state, {values(all, 0), zeros(3 * s.width)}, {kernel, naive, elems(all)}, team);
}

void cross_entropy(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  enum { kLogits, kLargest, kSums, kPredicted };
  Tokens targets = tokens_of(s.loss_rows, s.vocabulary);
  const std::int64_t all = s.loss_rows * s.vocabulary;
  const auto kernel = [&](Tensors& t) {
    const models::LogitBlock block{tensor(t[kLogits]),
                                   s.loss_rows,
                                   s.vocabulary,
                                   {0, s.vocabulary},
                                   {targets.data(), targets.size()},
                                   tensor(t[kLargest]),
                                   tensor(t[kSums]),
                                   tensor(t[kPredicted]),
                                   {}};
    models::row_maxima<float>(block, team);
    models::exponential_sums<float>(block, team);
    models::logits_to_gradient<float>(block, team);
  };
  const auto naive = [&](Tensors& t) {
    naive::cross_entropy(t[kLogits], targets, t[kLargest], t[kSums], t[kPredicted]);
  };
  Floats logits = values(all, 0);
  for (float& logit : logits) logit *= 8;
  // Three passes, because reductions over ranks separate them: one reads, two read and write.
  compare_with_memcpy(state, {logits, zeros(s.loss_rows), zeros(s.loss_rows), zeros(s.loss_rows)},
                      {kernel, naive, elems(5 * all)}, team);
}

void embedding_forward(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  const Tokens tokens = tokens_of(s.rows(), s.vocabulary);
  const auto kernel = [&](Tensors& t) {
    models::embedding_forward<float>(tokens, {0, s.vocabulary}, t[0], s.width, t[1], team);
  };
  const auto naive = [&](Tensors& t) { naive::embedding_forward(tokens, t[0], t[1]); };
  const std::int64_t all = s.rows() * s.width;
  compare_with_memcpy(state, {values(s.vocabulary * s.width, 0), zeros(all)}, {kernel, naive, elems(2 * all)}, team);
}

void embedding_backward(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  const Tokens tokens = tokens_of(s.rows(), s.vocabulary);
  const auto kernel = [&](Tensors& t) {
    models::embedding_backward<float>(tokens, {0, s.vocabulary}, t[0], s.width, t[1], team);
  };
  const auto naive = [&](Tensors& t) { naive::embedding_backward(tokens, t[0], t[1]); };
  const std::int64_t all = s.rows() * s.width;
  compare_with_memcpy(state, {values(all, 0), zeros(s.vocabulary * s.width)}, {kernel, naive, elems(3 * all)}, team);
}

void add_positions(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  const auto kernel = [&](Tensors& t) { models::add_positions<float>(t[0], s.batch, s.length, s.width, t[1], team); };
  const auto naive = [](Tensors& t) { naive::add_positions(t[0], t[1]); };
  const std::int64_t table = s.length * s.width;
  compare_with_memcpy(state, {values(table, 0), values(s.batch * table, 1)},
                      {kernel, naive, elems((1 + 2 * s.batch) * table)}, team);
}

void positions_backward(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  const auto kernel = [&](Tensors& t) {
    models::positions_backward<float>(t[0], s.batch, s.length, s.width, t[1], team);
  };
  const auto naive = [](Tensors& t) { naive::positions_backward(t[0], t[1]); };
  const std::int64_t table = s.length * s.width;
  compare_with_memcpy(state, {values(s.batch * table, 0), zeros(table)}, {kernel, naive, elems((s.batch + 2) * table)},
                      team);
}

void adamw_update(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  enum { kValue, kGradient, kFirst, kSecond };
  models::AdamWStep step;
  step.learning_rate = 1e-3;
  step.gradient_scale = 0.5;
  step.beta1 = 0.9;
  step.beta2 = 0.95;
  step.epsilon = 1e-8;
  step.weight_decay = 0.1;
  step.bias_correction1 = 1 - step.beta1;
  step.bias_correction2 = 1 - step.beta2;
  const auto kernel = [&](Tensors& t) {
    models::adamw_update<float>(t[kValue], t[kGradient], t[kFirst], t[kSecond], step, team);
  };
  const auto naive = [&](Tensors& t) { naive::adamw_update(t[kValue], t[kGradient], t[kFirst], t[kSecond], step); };
  const std::int64_t all = s.width * s.hidden();
  compare_with_memcpy(state, {values(all, 0), values(all, 1), zeros(all), zeros(all)}, {kernel, naive, elems(7 * all)},
                      team);
}

void to_bf16(State& state, const KernelShapes& s, int threads) {
  const Team team(threads);
  const std::int64_t all = s.width * s.hidden();
  std::vector<models::Bf16> ours(static_cast<std::size_t>(all));
  std::vector<std::uint16_t> theirs(static_cast<std::size_t>(all));
  const auto kernel = [&](Tensors& t) { models::to_narrow(t[0], 1.0F, std::span(ours), team); };
  const auto naive = [&](Tensors& t) { naive::to_bf16(t[0], theirs); };
  Tensors input = {values(all, 0)};
  kernel(input);
  naive(input);
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    if (ours[i].bits == theirs[i]) continue;
    state.SkipWithError(("to_bf16: other bits at " + std::to_string(i)).c_str());
    return;
  }
  compare_with_memcpy(state, input, {kernel, naive, 1.5 * elems(all)}, team);
}

using Benchmark = void (*)(State&, const KernelShapes&, int);
constexpr std::array<std::pair<const char*, Benchmark>, 14> kLoops = {{
    {"layernorm_forward", layernorm_forward},
    {"residual_layernorm_forward", residual_layernorm_forward},
    {"layernorm_backward", layernorm_backward},
    {"bias_gelu_forward", bias_gelu_forward},
    {"bias_gelu_backward", bias_gelu_backward},
    {"fill_rows", fill_rows},
    {"add_column_sums", add_column_sums},
    {"cross_entropy", cross_entropy},
    {"embedding_forward", embedding_forward},
    {"embedding_backward", embedding_backward},
    {"add_positions", add_positions},
    {"positions_backward", positions_backward},
    {"adamw_update", adamw_update},
    {"to_bf16", to_bf16},
}};

void register_all() {
  const KernelShapes gpt2{"gpt2_124m", 4, 64, 768, 12, 50257, 64};
  const KernelShapes nano{"nano", 8, 128, 128, 4, 256, 1024};
  for (const KernelShapes& shapes : {gpt2, nano}) {
    for (const int threads : {1, 2}) {
      for (const auto& [name, function] : kLoops) register_kernel(name, shapes, threads, function);
      register_products(shapes, threads);
    }
  }
}

}  // namespace
}  // namespace droptest::benchmarks

int main(int argc, char** argv) {
  droptest::models::keep_freed_memory();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  droptest::benchmarks::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
