// SPDX-License-Identifier: Apache-2.0
// All-reduces of the `local` backend by ranks and elements. Bytes per second count one rank's message.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "comm/run_ranks.h"

namespace droptest::comm {
namespace {

constexpr std::uint64_t kBatch = 16;

// Rank 0 has the benchmark's state, and tells the other ranks whether there is another batch.
void local_all_reduce(benchmark::State& state) {
  const auto world_size = static_cast<int>(state.range(0));
  const auto count_elems = static_cast<std::size_t>(state.range(1));
  run_ranks(world_size, std::chrono::minutes(1), [&](Communicator& communicator) {
    std::vector<float> data(count_elems, 1.0F);
    for (;;) {
      std::uint64_t goes_on = communicator.rank() == 0 && state.KeepRunningBatch(kBatch) ? 1 : 0;
      communicator.broadcast(std::span(&goes_on, 1), 0, {.name = "goes_on"});
      if (goes_on == 0) return;
      for (std::uint64_t i = 0; i < kBatch; ++i) {
        communicator.all_reduce(std::span(data), ReduceOp::kMax,
                                {.traffic_class = sim::TrafficClass::kTpForward, .name = "benchmark"});
      }
    }
  });
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(count_elems * sizeof(float)));
}
BENCHMARK(local_all_reduce)
    ->ArgNames({"ranks", "elements"})
    ->ArgsProduct({{1, 2, 4, 8}, {1, 4096, 131072, 4194304}})
    ->UseRealTime();

}  // namespace
}  // namespace droptest::comm
