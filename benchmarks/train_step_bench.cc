// SPDX-License-Identifier: Apache-2.0
// Tokens per second of whole training steps (forward, backward, norm, AdamW) of `nano`, ranks as threads of one
// process.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "comm/run_ranks.h"
#include "models/gpt2/gpt2.h"
#include "models/optimizer.h"

namespace droptest::models {
namespace {

constexpr int kBatch = 8;
constexpr int kLength = 128;

/// Arguments: ranks, threads per rank. One iteration is one step; the model is built outside the measured time.
void train_step(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const auto threads = static_cast<int>(state.range(1));
  const Gpt2Config config = gpt2_preset("nano").config;
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < kBatch * kLength + 1; ++i) tokens.push_back(i * 7919 % config.vocabulary);
  const std::span<const std::int32_t> inputs = std::span<const std::int32_t>(tokens).first(kBatch * kLength);
  const std::span<const std::int32_t> targets = std::span<const std::int32_t>(tokens).last(kBatch * kLength);
  constexpr int kSteps = 20;
  for (auto unused : state) {
    double seconds = 0;
    comm::run_ranks(ranks, std::chrono::minutes(10), [&](comm::Communicator& group) {
      Gpt2<float> model(config, group, threads);
      model.initialize(1);
      AdamW<float> adamw(model.parameters(), {}, threads);
      const auto step = [&] {
        model.zero_gradients();
        benchmark::DoNotOptimize(model.forward(inputs, targets, kBatch, kLength));
        model.backward(1.0);
        const double norm = global_gradient_norm<float>(model.parameters(), group);
        adamw.step(1e-3, clip_scale(norm, 1.0));
      };
      step();
      group.barrier({});
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kSteps; ++i) step();
      group.barrier({});
      if (group.rank() == 0) {
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
    });
    state.SetIterationTime(seconds);
  }
  state.counters["tokens_per_second"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * kSteps * kBatch * kLength, benchmark::Counter::kIsRate);
}

BENCHMARK(train_step)
    ->ArgNames({"ranks", "threads"})
    ->Args({1, 1})
    ->Args({1, 2})
    ->Args({4, 1})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace droptest::models
