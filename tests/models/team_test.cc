// SPDX-License-Identifier: Apache-2.0
#include "models/team.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

namespace droptest::models {
namespace {

TEST(Team, RunsEachPartOnce) {
  for (const int threads : {0, 1, 2, 3, 8}) {
    const Team team(threads);
    for (const std::int64_t parts : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(parts));
      team.run(parts, [&](Team::Worker, std::int64_t part) { ++runs[static_cast<std::size_t>(part)]; });
      for (const std::atomic<int>& count : runs) ASSERT_EQ(count, 1) << threads << " threads, " << parts << " parts";
    }
  }
}

TEST(Team, AWorkerRunsOnePartAtATime) {
  const Team team(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> wrong = 0;
  for (int loop = 0; loop < 50; ++loop) {
    team.run(40, [&](Team::Worker worker, std::int64_t) {
      if (worker < 0 || worker >= 4 || ++inside[static_cast<std::size_t>(worker)] != 1) ++wrong;
      std::this_thread::yield();
      --inside[static_cast<std::size_t>(worker)];
    });
  }
  EXPECT_EQ(wrong, 0);
}

// What a loop leaves behind must not reach the next: a worker that comes late finds another body, another number of
// parts and other memory.
TEST(Team, LateWorkersTouchNoLoopButTheOneThatIsOn) {
  const Team team(3);
  for (std::int64_t loop = 0; loop < 20000; ++loop) {
    const std::int64_t parts = 1 + loop % 5;
    std::vector<std::int64_t> results(static_cast<std::size_t>(parts), -1);
    if (loop % 2 == 0) {
      team.run(parts, [&results, loop](Team::Worker, std::int64_t part) {
        results[static_cast<std::size_t>(part)] += 1 + loop + part;
      });
    } else {
      team.run(parts, [loop, &results](Team::Worker, std::int64_t part) {
        results[static_cast<std::size_t>(part)] = loop + part;
      });
    }
    for (std::int64_t part = 0; part < parts; ++part) ASSERT_EQ(results[static_cast<std::size_t>(part)], loop + part);
  }
}

TEST(Team, LoopsThatBeginAfterTheWorkersSleepAreWhole) {
  const Team team(3);
  for (int loop = 0; loop < 4; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    std::atomic<int> sum = 0;
    team.run(64, [&](Team::Worker, std::int64_t) {
      ++sum;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    });
    EXPECT_EQ(sum, 64);
  }
}

TEST(Team, WorkersTakePartsOfLongLoops) {
  const Team team(2);
  std::vector<std::atomic<int>> parts_of(2);
  team.run(200, [&](Team::Worker worker, std::int64_t) {
    ++parts_of[static_cast<std::size_t>(worker)];
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  });
  EXPECT_GT(parts_of[1], 20);
}

TEST(Team, CopiesShareWorkersAndTheLastOneEndsThem) {
  std::optional<Team> first(std::in_place, 3);
  Team copy = *first;
  first.reset();
  std::atomic<int> sum = 0;
  copy.run(10, [&](Team::Worker, std::int64_t part) { sum += static_cast<int>(part); });
  EXPECT_EQ(sum, 45);
  std::thread([last = std::move(copy)] {}).join();
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(Team, WorkersWithoutWorkSleep) {
  const Team team(4);
  team.run(100, [](Team::Worker, std::int64_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  // Three workers that spin would have used 0.4 s of each core there is.
  EXPECT_LT(processor_seconds() - before, 0.1);
}

}  // namespace
}  // namespace droptest::models
