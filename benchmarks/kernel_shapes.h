// SPDX-License-Identifier: Apache-2.0
// The shapes at which kernels_bench measures: those of one rank of a model.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>

namespace droptest::benchmarks {

struct KernelShapes {
  std::string model;
  std::int64_t batch = 0;
  std::int64_t length = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t vocabulary = 0;
  std::int64_t loss_rows = 0;  ///< rows of logits in cross-entropy

  std::int64_t rows() const { return batch * length; }
  std::int64_t hidden() const { return 4 * width; }
};

inline constexpr int kRounds = 21;

/// Registers fn(state, shapes, threads) as operation/model/threads:N. An iteration is a round of turns.
template <class Function>
void register_kernel(const std::string& operation, const KernelShapes& shapes, int threads, const Function& function) {
  const std::string name = operation + "/" + shapes.model + "/threads:" + std::to_string(threads);
  benchmark::RegisterBenchmark(
      name.c_str(), [function, shapes, threads](benchmark::State& state) { function(state, shapes, threads); })
      ->Iterations(kRounds)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

/// Registers GEMMs and attention (kernel_products_bench.cc).
void register_products(const KernelShapes& shapes, int threads);

}  // namespace droptest::benchmarks
