// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/turns.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

namespace droptest::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kShortestTurn = 5e-4;  ///< seconds; shorter calls are repeated until they take that long
constexpr int kMostCalls = 4096;

/// Correct results may differ by about 1e-5: sums of up to 50,257 floats have another order, and exp another
/// implementation.
constexpr double kTolerance = 2e-4;

/// Longer than the time that a team's threads look for work before they sleep.
constexpr auto kRest = std::chrono::milliseconds(6);

/// Ends OpenMP's threads and lets a team's threads fall asleep, so that they do not take cores from the next contestant
/// while they wait for work.
void rest() {
  omp_pause_resource_all(omp_pause_soft);
  std::this_thread::sleep_for(kRest);
}

double seconds_of(const std::function<void()>& contestant, int calls) {
  const auto begin = Clock::now();
  for (int i = 0; i < calls; ++i) contestant();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// One contestant, with the time of a call in each round.
class Player {
 public:
  explicit Player(const std::function<void()>& contestant) : contestant_(contestant) {
    rest();
    contestant_();
    const double once = std::max(1e-9, seconds_of(contestant_, 1));
    calls_ = static_cast<int>(std::clamp(std::ceil(kShortestTurn / once), 1.0, double{kMostCalls}));
  }

  void play() {
    rest();
    contestant_();  // wakes threads and fills caches
    seconds_.push_back(seconds_of(contestant_, calls_) / calls_);
  }

  const std::vector<double>& seconds() const { return seconds_; }

 private:
  const std::function<void()>& contestant_;
  int calls_ = 1;
  std::vector<double> seconds_;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The ratio of the other's time to this one's.
double median_ratio(const Player& other, const Player& kernel) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < kernel.seconds().size(); ++round) {
    ratios.push_back(other.seconds()[round] / kernel.seconds()[round]);
  }
  return median(ratios);
}

}  // namespace

void compare_in_turns(benchmark::State& state, const Contest& contest) {
  std::string mismatch = contest.mismatch();
  if (!mismatch.empty()) {
    state.SkipWithError(mismatch.c_str());
    return;
  }
  Player kernel(contest.kernel);
  Player yardstick(contest.yardstick);
  std::unique_ptr<Player> naive;
  if (contest.naive) naive = std::make_unique<Player>(contest.naive);
  for ([[maybe_unused]] auto round : state) {
    kernel.play();
    yardstick.play();
    if (naive) naive->play();
    state.SetIterationTime(kernel.seconds().back());
  }
  mismatch = contest.mismatch();
  if (!mismatch.empty()) state.SkipWithError(("after the rounds: " + mismatch).c_str());
  state.counters[contest.rate] = contest.work / median(kernel.seconds());
  state.counters[contest.ratio] = median_ratio(yardstick, kernel);
  if (naive) state.counters["speedup_over_naive"] = median_ratio(*naive, kernel);
}

void compare_with_memcpy(benchmark::State& state, const Tensors& tensors, const LoopContest& contest,
                         const models::Team& team) {
  Tensors ours = tensors;
  Tensors theirs = tensors;
  contest.kernel(ours);
  contest.naive(theirs);
  std::string mismatch;
  for (std::size_t i = 0; i < ours.size() && mismatch.empty(); ++i) {
    mismatch = mismatch_of(ours[i], theirs[i]);
    if (!mismatch.empty()) mismatch = "tensor " + std::to_string(i) + mismatch;
  }
  contest.settle(ours);
  contest.settle(theirs);

  // A copy reads and writes each byte, so copying half as many bytes moves as much.
  const auto copied = static_cast<std::size_t>(contest.moved_elems / 2);
  const Floats source(copied, 1.0F);
  Floats copy(copied, 0.0F);
  const auto yardstick = [&] {
    const auto parts = static_cast<std::size_t>(team.threads());
    team.run(team.threads(), [&](models::Team::Worker, std::int64_t part) {
      const std::size_t begin = copied * static_cast<std::size_t>(part) / parts;
      const std::size_t end = copied * (static_cast<std::size_t>(part) + 1) / parts;
      std::memcpy(copy.data() + begin, source.data() + begin, (end - begin) * sizeof(float));
    });
    benchmark::ClobberMemory();
  };
  compare_in_turns(state,
                   {[&] { contest.kernel(ours); }, yardstick, [&] { contest.naive(theirs); }, "ratio_to_memcpy",
                    "gigabytes_per_second", 1e-9 * sizeof(float) * contest.moved_elems, [&] { return mismatch; }});
}

Floats numbers(std::size_t count, double start) {
  constexpr double kGolden = 0.61803398874989484820;  // fractional parts of its multiples fill [0, 1) evenly
  Floats values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double x = start + kGolden * static_cast<double>(i);
    values[i] = static_cast<float>(2 * (x - std::floor(x)) - 1);
  }
  return values;
}

std::string mismatch_of(const Floats& values, const Floats& expected) {
  if (values.size() != expected.size()) return ": another number of elements";
  double magnitude = 0;
  for (const float value : expected) magnitude += std::abs(double{value}) / static_cast<double>(expected.size());
  if (!std::isfinite(magnitude)) return ": infinities or NaNs are expected";
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double want = expected[i];
    // The comparison is written so that a NaN fails.
    if (!(std::abs(values[i] - want) <= kTolerance * (std::abs(want) + magnitude))) {
      return "[" + std::to_string(i) + "]: got " + std::to_string(values[i]) + ", expected " + std::to_string(want);
    }
  }
  return {};
}

}  // namespace droptest::benchmarks
