// SPDX-License-Identifier: Apache-2.0
// The cost of the loss layer: an all-reduce with loss, compared with the same path with a process that never loses, and
// with the bare backend. They run in turns, so that all see the same state of the machine. Fates are drawn for several
// calls at a time, so the cost of a single call says little. Therefore `overhead_ratio` and `ratio_to_bare` are medians
// over blocks of consecutive rounds of the ratio of a block's times; `bare_us` is the median of the bare backend's
// calls. loss_layer_bench --benchmark_format=json also prints the machine.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"

namespace droptest::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kClass = sim::TrafficClass::kTpForward;
const Message kMessage{kClass, "activation", 0};
const Message kControl{sim::TrafficClass::kControl, "another round"};

LossyOptions options_of(std::string_view path, const std::shared_ptr<const sim::LossProcess>& loss, Fill fill) {
  LossyOptions options;
  options.network.seed = 1;
  ClassNetwork network;
  network.path = path;
  apply_loss(network, loss);
  apply_fill(network, fill);
  options.network.of(kClass) = network;
  return options;
}

// The all-reduce is in place, like those of layers and optimizers. Data are zeros, so that repeated sums stay finite.
double seconds_of_call(Communicator& inner, Communicator& timed, std::vector<float>& data) {
  inner.barrier(kControl);
  const auto begin = Clock::now();
  timed.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, kMessage);
  inner.barrier(kControl);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The median over blocks of rounds of the ratio of sums. Rounds left over at the end are in no block; fewer rounds than
// a block's are one block.
double median_ratio(const std::vector<double>& above, const std::vector<double>& below) {
  const std::size_t rounds = std::min<std::size_t>(20, above.size());
  std::vector<double> ratios;
  for (std::size_t begin = 0; begin + rounds <= above.size(); begin += rounds) {
    const auto sum = [&](const std::vector<double>& seconds) {
      const auto first = seconds.begin() + static_cast<std::ptrdiff_t>(begin);
      return std::accumulate(first, first + static_cast<std::ptrdiff_t>(rounds), 0.0);
    };
    ratios.push_back(sum(above) / sum(below));
  }
  return median(ratios);
}

void compare(benchmark::State& state, std::string_view path, const std::shared_ptr<const sim::LossProcess>& loss,
             Fill fill) {
  const int ranks = static_cast<int>(state.range(0));
  const auto count = static_cast<std::size_t>(state.range(1));
  run_ranks(ranks, std::chrono::minutes(1), [&](Communicator& inner) {
    LossyCommunicator lossy(inner, options_of(path, loss, fill));
    LossyCommunicator clean(inner, options_of(path, std::make_shared<sim::Bernoulli>(0), fill));
    std::vector<float> data(count);
    std::vector<double> lossy_seconds;
    std::vector<double> clean_seconds;
    std::vector<double> bare_seconds;
    // Rank 0 has the benchmark's state, and tells the other ranks whether there is another round.
    for (;;) {
      std::array<std::uint64_t, 1> again = {inner.rank() == 0 && state.KeepRunning() ? 1U : 0U};
      inner.broadcast(Tensor(std::span<std::uint64_t>(again)), 0, kControl);
      if (again[0] == 0) break;
      bare_seconds.push_back(seconds_of_call(inner, inner, data));
      clean_seconds.push_back(seconds_of_call(inner, clean, data));
      lossy_seconds.push_back(seconds_of_call(inner, lossy, data));
      if (inner.rank() == 0) state.SetIterationTime(lossy_seconds.back());
    }
    if (inner.rank() != 0) return;
    state.counters["overhead_ratio"] = median_ratio(lossy_seconds, clean_seconds);
    state.counters["ratio_to_bare"] = median_ratio(lossy_seconds, bare_seconds);
    state.counters["bare_us"] = 1e6 * median(bare_seconds);
  });
}

const auto kOnePercent = std::make_shared<sim::Bernoulli>(0.01);
const auto kBernoulli = std::make_shared<sim::Bernoulli>(0.05);
const auto kBursts = std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.05, 8));

void direct_one_percent(benchmark::State& state) { compare(state, "direct", kOnePercent, Fill::kCountRescale); }
void contribution_one_percent(benchmark::State& state) {
  compare(state, "contribution", kOnePercent, Fill::kCountRescale);
}
void direct_zero(benchmark::State& state) { compare(state, "direct", kBernoulli, Fill::kZero); }
void direct_count_rescale(benchmark::State& state) { compare(state, "direct", kBernoulli, Fill::kCountRescale); }
void direct_stale(benchmark::State& state) { compare(state, "direct", kBernoulli, Fill::kStale); }
void direct_bursts(benchmark::State& state) { compare(state, "direct", kBursts, Fill::kZero); }
void contribution_zero(benchmark::State& state) { compare(state, "contribution", kBernoulli, Fill::kZero); }

// The numbers of ranks and elements: an activation of `nano`, messages of 4 MB, and gradient buckets of 25 MB.
void shapes(benchmark::internal::Benchmark* b) {
  b->Args({4, 131072})->Args({8, 1 << 20})->Args({8, 25 << 18})->UseManualTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(direct_one_percent)->Apply(shapes);
BENCHMARK(contribution_one_percent)->Apply(shapes);
BENCHMARK(direct_zero)->Apply(shapes);
BENCHMARK(direct_count_rescale)->Apply(shapes);
BENCHMARK(direct_stale)->Apply(shapes);
BENCHMARK(direct_bursts)->Apply(shapes);
BENCHMARK(contribution_zero)->Apply(shapes);

}  // namespace
}  // namespace droptest::comm
