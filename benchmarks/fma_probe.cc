// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/fma_probe.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>

namespace droptest::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kWindowSeconds = 0.025;
// Enough chains to hide the latency of two units (2 x 4 to 5 cycles), and few enough for 16 registers.
constexpr int kChains = 12;
constexpr double kDip = 0.75;

/// A loop of passes over the chains, and the operations of one pass.
struct Loop {
  void (*run)(std::int64_t passes);
  double flop_per_pass;
};

std::atomic<float> sink;  // prevents the compiler from removing the loops

__attribute__((target("avx512f"))) void fma_avx512(std::int64_t passes) {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_set1_ps(0.5F);
  const __m512 factor = _mm512_set1_ps(0.999F);
  for (std::int64_t i = 0; i < passes; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, factor, factor);
  }
  float total = 0;
  for (const __m512& sum : sums) total += _mm512_cvtss_f32(sum);
  sink = total;
}

__attribute__((target("avx2,fma"))) void fma_avx2(std::int64_t passes) {
  __m256 sums[kChains];
  for (__m256& sum : sums) sum = _mm256_set1_ps(0.5F);
  const __m256 factor = _mm256_set1_ps(0.999F);
  for (std::int64_t i = 0; i < passes; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, factor, factor);
  }
  float total = 0;
  for (const __m256& sum : sums) total += _mm256_cvtss_f32(sum);
  sink = total;
}

void multiply_add_sse(std::int64_t passes) {
  __m128 sums[kChains];
  for (__m128& sum : sums) sum = _mm_set1_ps(0.5F);
  const __m128 factor = _mm_set1_ps(0.999F);
  for (std::int64_t i = 0; i < passes; ++i) {
#pragma GCC unroll 12
    for (__m128& sum : sums) sum = _mm_add_ps(_mm_mul_ps(sum, factor), factor);
  }
  float total = 0;
  for (const __m128& sum : sums) total += _mm_cvtss_f32(sum);
  sink = total;
}

Loop widest_loop() {
  if (__builtin_cpu_supports("avx512f")) return {fma_avx512, 2.0 * 16 * kChains};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {fma_avx2, 2.0 * 8 * kChains};
  return {multiply_add_sse, 2.0 * 4 * kChains};
}

double seconds_of(const Loop& loop, std::int64_t passes) {
  const auto start = Clock::now();
  loop.run(passes);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The number of passes that fill a window on one core, from the shortest of several tries, so that disturbed tries do
/// not count.
std::int64_t passes_of_a_window(const Loop& loop) {
  constexpr std::int64_t kTry = 1 << 18;
  double seconds = seconds_of(loop, kTry);
  for (int i = 0; i < 9; ++i) seconds = std::min(seconds, seconds_of(loop, kTry));
  return static_cast<std::int64_t>(kWindowSeconds / seconds * static_cast<double>(kTry));
}

}  // namespace

FmaRates probe_fma(int threads, int windows) {
  const Loop loop = widest_loop();
  const std::int64_t passes = passes_of_a_window(loop);
  std::barrier gate(threads);
  std::vector<double> rates;
  const auto work = [&](int thread) {
    for (int w = 0; w < windows; ++w) {
      gate.arrive_and_wait();
      const auto start = Clock::now();
      loop.run(passes);
      gate.arrive_and_wait();
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (thread == 0) rates.push_back(threads * static_cast<double>(passes) * loop.flop_per_pass / seconds / 1e9);
    }
  };
  {
    std::vector<std::jthread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
    work(0);
  }
  std::sort(rates.begin(), rates.end());
  FmaRates result;
  result.median = rates[rates.size() / 2];
  result.lowest = rates.front();
  const auto dips = std::count_if(rates.begin(), rates.end(), [&](double rate) { return rate < kDip * result.median; });
  result.share_of_dips = static_cast<double>(dips) / static_cast<double>(rates.size());
  return result;
}

}  // namespace droptest::benchmarks
