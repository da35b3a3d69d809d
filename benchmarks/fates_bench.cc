// SPDX-License-Identifier: Apache-2.0
// Packets per second of each loss process, and of the digest and the burst counts of every mask.
// fates_bench --benchmark_format=json also prints the machine.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sim/loss/bernoulli.h"
#include "sim/loss/burst_histogram.h"
#include "sim/loss/fate_digest.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/random/draw_kernels.h"

namespace droptest::sim {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kReduce, 1, 2};

void count_packets(benchmark::State& state) {
  state.counters["packets_per_second"] =
      benchmark::Counter(static_cast<double>(state.iterations() * state.range(0)), benchmark::Counter::kIsRate);
}

void draw_in_turn(benchmark::State& state, const LossProcess& process) {
  PacketMask lost(static_cast<std::uint64_t>(state.range(0)));
  std::uint64_t first_packet = 0;
  for ([[maybe_unused]] auto _ : state) {
    process.draw(1, kLink, first_packet, lost);
    benchmark::DoNotOptimize(lost.words().data());
    first_packet += lost.size();
  }
  count_packets(state);
}

void bernoulli(benchmark::State& state) { draw_in_turn(state, Bernoulli(0.01)); }
void gilbert(benchmark::State& state) { draw_in_turn(state, GilbertElliott(rates_of_burst(0.01, 8))); }
void gilbert_elliott(benchmark::State& state) { draw_in_turn(state, GilbertElliott({0.02, 0.2, 0.005, 0.6})); }
void gilbert_swapping(benchmark::State& state) { draw_in_turn(state, GilbertElliott({0.6, 0.7, 0, 1})); }

void histogram(benchmark::State& state) {
  PacketMask lost(static_cast<std::uint64_t>(state.range(0)));
  GilbertElliott(rates_of_burst(0.01, 8)).draw(1, kLink, 0, lost);
  BurstHistogram bursts;
  for ([[maybe_unused]] auto _ : state) bursts.add(lost);
  benchmark::DoNotOptimize(bursts.bursts());
  count_packets(state);
}

void digest(benchmark::State& state) {
  PacketMask lost(static_cast<std::uint64_t>(state.range(0)));
  GilbertElliott(rates_of_burst(0.01, 8)).draw(1, kLink, 0, lost);
  FateDigest fates(kLink);
  std::uint64_t first_packet = 0;
  for ([[maybe_unused]] auto _ : state) {
    fates.add(first_packet, lost);
    first_packet += lost.size();
  }
  benchmark::DoNotOptimize(fates.value());
  count_packets(state);
}

// Only the draws, by vector width: with one threshold as in Bernoulli, or with two as in Gilbert-Elliott.
void draws(benchmark::State& state, const DrawKernels& kernels, int thresholds) {
  std::vector<std::uint64_t> a(static_cast<std::size_t>(state.range(0) / 64));
  std::vector<std::uint64_t> b(a.size());
  const DrawStream stream{1, link_counter(kLink, Purpose::kLossTransition, 0), 0};
  for ([[maybe_unused]] auto _ : state) {
    if (thresholds == 1) {
      kernels.one(stream, 42949672, a);
    } else {
      kernels.two(stream, 42949672, a.data(), 2147483648, b);
    }
    benchmark::DoNotOptimize(a.data());
    benchmark::DoNotOptimize(b.data());
  }
  count_packets(state);
}

const bool kWidthsAreRegistered = [] {
  for (const DrawKernels& kernels : usable_draw_kernels()) {
    for (const int thresholds : {1, 2}) {
      const std::string name = "draws_" + std::string(kernels.name) + "/" + std::to_string(thresholds);
      benchmark::RegisterBenchmark(name.c_str(), draws, kernels, thresholds)->Arg(1 << 20);
    }
  }
  return true;
}();

BENCHMARK(bernoulli)->Arg(100)->Arg(1 << 20);
BENCHMARK(gilbert)->Arg(100)->Arg(1 << 20);
BENCHMARK(gilbert_elliott)->Arg(100)->Arg(1 << 20);
BENCHMARK(gilbert_swapping)->Arg(1 << 20);
BENCHMARK(histogram)->Arg(1 << 20);
BENCHMARK(digest)->Arg(1 << 20);

}  // namespace
}  // namespace droptest::sim
