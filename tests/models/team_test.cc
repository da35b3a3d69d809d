// SPDX-License-Identifier: Apache-2.0
#include "models/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace droptest::models::team_test {
namespace {

/// Returns when every other thread of this process sleeps, and continues to sleep while this thread yields the
/// processor. Does not return while another thread runs.
void await_sleep_of_others() {
  const auto all_sleep = [] {
    int awake = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(task.path() / "stat");
      std::string stat;
      std::getline(file, stat);
      const std::size_t name_end = stat.rfind(')');
      if (name_end != std::string::npos && stat[name_end + 2] == 'R') ++awake;
    }
    return awake <= 1;  // this one
  };
  for (int in_a_row = 0; in_a_row < 20; in_a_row = all_sleep() ? in_a_row + 1 : 0) std::this_thread::yield();
}

/// A loop with parts that end together: it ends only if each thread of the team takes one part.
void run_at_the_same_time(const Team& team) {
  std::latch all(team.threads());
  std::vector<std::atomic<int>> parts_of(static_cast<std::size_t>(team.threads()));
  team.run(team.threads(), [&](Team::Worker worker, std::int64_t) {
    ++parts_of[static_cast<std::size_t>(worker)];
    all.arrive_and_wait();
  });
  for (const std::atomic<int>& count : parts_of) EXPECT_EQ(count, 1);
}

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

// The state of a loop must not reach the next: a worker that comes late finds another body, another number of parts and
// other memory.
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
    await_sleep_of_others();
    run_at_the_same_time(team);
  }
}

TEST(Team, EachWorkerTakesAPartOfALongLoop) {
  for (const int threads : {2, 5}) run_at_the_same_time(Team(threads));
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

TEST(Team, WorkersWithoutWorkSleep) {
  const Team team(4);
  team.run(100, [](Team::Worker, std::int64_t) {});
  await_sleep_of_others();
}

}  // namespace
}  // namespace droptest::models::team_test
