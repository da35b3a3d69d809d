// SPDX-License-Identifier: Apache-2.0
// The cost of the wall-time breakdown that every run records: the cost of a phase, of a call of the communicator, and
// of the ranks' calls in a line of metrics.jsonl. profile_overhead.py multiplies these costs by their counts in a step.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "experiments/training/step_profile.h"

namespace droptest::experiments {
namespace {

// The begin and the end of a phase, including the reading of the clock.
void phase(benchmark::State& state) {
  StepProfile profile([] { return comm::PacketTotals(); });
  for ([[maybe_unused]] auto _ : state) {
    const models::PhaseScope scope(&profile.times(), models::Phase::kProducts);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(phase);

comm::MeteredCall a_call(std::uint64_t number) {
  comm::MeteredCall call;
  call.operation = comm::Operation::kAllReduce;
  call.traffic_class = sim::TrafficClass::kTpForward;
  call.name = "h.3.attn.c_proj";
  call.bytes = 1 << 20;
  call.group = "0 1 2 3 4 5 6 7";
  call.number = number;
  return call;
}

void communicator_call(benchmark::State& state) {
  constexpr std::uint64_t kCallsOfStep = 100;
  StepProfile profile([] { return comm::PacketTotals(); });
  std::uint64_t number = 0;
  for ([[maybe_unused]] auto _ : state) {
    if (++number % kCallsOfStep == 0) profile.begin_step();
    profile.begins(a_call(number));
    benchmark::ClobberMemory();
    profile.ends();
  }
}
BENCHMARK(communicator_call);

// The work of rank 0 for the calls of all ranks in one step.
void waiting_of_a_line(benchmark::State& state) {
  std::vector<std::vector<TimedCall>> ranks(static_cast<std::size_t>(state.range(0)));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::int64_t i = 0; i < state.range(1); ++i) {
      const auto late = static_cast<std::int64_t>(rank);
      ranks[rank].push_back({static_cast<std::uint64_t>(i + 1) * 0x9e3779b97f4a7c15U, 1000 * i + late, 500});
    }
  }
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(waiting_shares(ranks));
}
BENCHMARK(waiting_of_a_line)->ArgNames({"ranks", "calls"})->ArgsProduct({{4, 64}, {100}});

}  // namespace
}  // namespace droptest::experiments
