// SPDX-License-Identifier: Apache-2.0
#include "comm/run_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "sim/error.h"
#include "tests/comm/fake_clock.h"
#include "tests/sanitizers.h"

namespace droptest::comm::run_ranks_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <class Error>
std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another type: ") + error.what();
  }
  return "nothing was thrown";
}

TEST(RunRanks, EachRankRunsOnceOnAThreadOfItsOwn) {
  std::mutex mutex;
  std::multiset<int> ranks;
  std::set<std::thread::id> threads;
  run_ranks(5, 60s, [&](Communicator& communicator) {
    EXPECT_EQ(communicator.world_size(), 5);
    EXPECT_EQ(communicator.backend(), "local");
    EXPECT_EQ(communicator.world_rank(communicator.rank()), communicator.rank());
    const std::lock_guard lock(mutex);
    ranks.insert(communicator.rank());
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ranks, (std::multiset<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(threads.size(), 5U);
}

TEST(RunRanks, RethrowsTheCauseWithItsTypeAndNotAnEcho) {
  for (int culprit = 0; culprit < 4; ++culprit) {
    const std::string message = message_of<std::domain_error>([&] {
      run_ranks(4, 60s, [&](Communicator& communicator) {
        communicator.barrier({.name = "start"});
        if (communicator.rank() == culprit) throw std::domain_error("loss is not a number");
        communicator.barrier({.name = "end"});
      });
    });
    EXPECT_EQ(message, "loss is not a number");
  }
}

// Counts a thread when it ends.
class AtThreadEnd {
 public:
  explicit AtThreadEnd(std::shared_ptr<std::atomic<int>> ended) : ended_(std::move(ended)) {}
  AtThreadEnd(const AtThreadEnd&) = delete;
  AtThreadEnd& operator=(const AtThreadEnd&) = delete;
  ~AtThreadEnd() {
    ++*ended_;
    ended_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<int>> ended_;
};

TEST(RunRanks, TheCauseIsRethrownWhereItsEchoesReturnFirst) {
  const std::string message = message_of<std::domain_error>([] {
    const auto ended = std::make_shared<std::atomic<int>>(0);
    run_ranks(3, 60s, [ended](Communicator& communicator) {
      if (communicator.rank() == 1) {
        communicator.abort("loss is not a number");
        await(*ended, 2);
        throw std::domain_error("the cause");
      }
      thread_local const AtThreadEnd kEnd(ended);
      communicator.barrier({.name = "b"});
    });
  });
  EXPECT_EQ(message, "the cause");
}

TEST(RunRanks, KeepsTypesThatAreNotExceptions) {
  EXPECT_THROW(run_ranks(2, 60s,
                         [](Communicator& communicator) {
                           if (communicator.rank() == 1) throw 42;
                           communicator.barrier({.name = "b"});
                         }),
               int);
}

TEST(RunRanks, AFailureThatEveryRankHandlesIsNotRethrown) {
  EXPECT_NO_THROW(run_ranks(2, 60s, [](Communicator& communicator) {
    if (communicator.rank() == 1) return communicator.abort("tried");
    EXPECT_THROW(communicator.barrier({.name = "b"}), CommError);
  }));
}

TEST(RunRanks, ARankThatNeverReturnsIsNamedAndDoesNotHangTheCaller) {
  const auto clock = std::make_shared<FakeClock>();  // shared with the rank that is left behind
  const auto release = std::make_shared<std::atomic<int>>(0);
  const auto returned = std::make_shared<std::atomic<int>>(0);
  const auto ended = std::make_shared<std::atomic<int>>(0);
  const auto body = [clock, release, returned, ended](Communicator& communicator) {
    if (communicator.rank() != 1) {
      thread_local const AtThreadEnd kReturned(returned);
      communicator.barrier({.name = "update"});
    } else {
      thread_local const AtThreadEnd kEnd(ended);
      clock->await_waiters(2);
      clock->advance(100ms);
      await(*returned, 2);
      clock->await_waiters(1);  // the caller, for this rank
      clock->advance(100ms);
      await(*release, 1);
      EXPECT_THROW(communicator.barrier({.name = "late"}), CommError);
    }
  };
  const std::string message = message_of<CommError>([&] { run_ranks(3, 100ms, body, *clock); });
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1 of 3 did not return"), HasSubstr("no data from rank 1 for 100 ms"),
                             HasSubstr("update")));
  *release = 1;
  release->notify_all();
  await(*ended, 1);
}

std::uint64_t virtual_memory_bytes() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(::getpagesize());
}

// While alive, threads have stacks of 1 GiB, and this process has room for two of them.
class RoomForTwoStacks {
 public:
  RoomForTwoStacks() {
    pthread_attr_t large;
    pthread_getattr_default_np(&before_);
    pthread_getattr_default_np(&large);
    pthread_attr_setstacksize(&large, kStackBytes);
    pthread_setattr_default_np(&large);
    pthread_attr_destroy(&large);
    ::getrlimit(RLIMIT_AS, &limit_);
    rlimit tight = limit_;
    tight.rlim_cur = virtual_memory_bytes() + 2 * kStackBytes + kStackBytes / 2;
    ::setrlimit(RLIMIT_AS, &tight);
  }
  ~RoomForTwoStacks() {
    ::setrlimit(RLIMIT_AS, &limit_);
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  static constexpr std::size_t kStackBytes = std::size_t{1} << 30;
  pthread_attr_t before_{};
  rlimit limit_{};
};

TEST(RunRanks, ARankWithoutAThreadIsAnErrorAndNoRankBegins) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow memory leaves no room for a limit";
  std::atomic<int> begun = 0;
  std::string message;
  {
    const RoomForTwoStacks room;
    message = message_of<ConfigError>([&] { run_ranks(600, 60s, [&](Communicator&) { ++begun; }); });
  }
  EXPECT_THAT(message, AllOf(HasSubstr("cannot start a thread for rank 2 of 600"), HasSubstr("want fewer ranks")));
  EXPECT_EQ(begun.load(), 0);
  run_ranks(3, 60s, [&](Communicator&) { ++begun; });
  EXPECT_EQ(begun.load(), 3);
}

TEST(RunRanks, RefusesAWorldWithoutRanksOrTime) {
  const auto nothing = [](Communicator&) {};
  EXPECT_THROW(run_ranks(0, 60s, nothing), ConfigError);
  EXPECT_THROW(run_ranks(2, 0ms, nothing), ConfigError);
}

}  // namespace
}  // namespace droptest::comm::run_ranks_test
