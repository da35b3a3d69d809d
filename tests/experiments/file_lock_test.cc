// SPDX-License-Identifier: Apache-2.0
#include "experiments/files/file_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "comm/json/read_file.h"
#include "experiments/files/atomic_file.h"
#include "experiments/process/child_process.h"
#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::file_lock_test {
namespace {

using testing::HasSubstr;
using Mode = FileLock::Mode;

std::string this_process() { return "process " + std::to_string(::getpid()) + " on host "; }

TEST(FileLock, IsHeldByOneAtATimeAndNamesItsHolder) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a/run/lock";
  std::optional<FileLock> lock = FileLock::try_take(path, Mode::kExclusive);
  ASSERT_TRUE(lock);
  EXPECT_THAT(lock_holder(path), testing::StartsWith(this_process()));
  EXPECT_FALSE(FileLock::try_take(path, Mode::kExclusive));
  EXPECT_FALSE(FileLock::try_take(path, Mode::kShared));
  FileLock moved = std::move(*lock);
  lock.reset();
  EXPECT_FALSE(FileLock::try_take(path, Mode::kExclusive)) << "the moved one holds it";
  { const FileLock ended = std::move(moved); }
  EXPECT_FALSE(std::filesystem::exists(path)) << "nothing is left of it";
  EXPECT_TRUE(FileLock::try_take(path, Mode::kExclusive));
}

TEST(FileLock, SharedHoldersKeepOutTheExclusiveOneUntilTheLastHasGone) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lock";
  std::optional<FileLock> first = FileLock::try_take(path, Mode::kExclusive);
  first->share();
  std::optional<FileLock> second = FileLock::try_take(path, Mode::kShared);
  ASSERT_TRUE(second);
  EXPECT_THAT(lock_holder(path), testing::StartsWith(this_process()));
  EXPECT_FALSE(FileLock::try_take(path, Mode::kExclusive));
  first.reset();
  EXPECT_FALSE(FileLock::try_take(path, Mode::kExclusive));
  EXPECT_TRUE(std::filesystem::exists(path)) << "it is the other's";
  second.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(FileLock::try_take(path, Mode::kExclusive));
}

TEST(FileLock, OfAProcessThatWasKilledIsFree) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lock";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const std::optional<FileLock> lock = FileLock::try_take(path, Mode::kExclusive);
    if (::write(ready[1], lock ? "y" : "n", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_FALSE(FileLock::try_take(path, Mode::kExclusive));
  EXPECT_THAT(lock_holder(path), testing::StartsWith("process " + std::to_string(holder) + " on host "));
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
  const std::optional<FileLock> lock = FileLock::try_take(path, Mode::kExclusive);
  EXPECT_TRUE(lock);
  EXPECT_THAT(lock_holder(path), testing::StartsWith(this_process()));
}

TEST(FileLock, NeverHasTwoHoldersWhileManyComeAndGo) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lock";
  std::atomic<int> inside{0};
  std::atomic<int> crowds{0};
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        const std::optional<FileLock> lock = FileLock::try_take(path, Mode::kExclusive);
        if (!lock) continue;
        ++taken;
        if (++inside != 1) ++crowds;
        std::this_thread::yield();
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(crowds, 0);
  EXPECT_GT(taken, 4);
}

TEST(FileLock, WaitsForItsHolderAndSaysSoOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lock";
  std::optional<FileLock> held = FileLock::try_take(path, Mode::kExclusive);
  std::vector<std::string> told;
  int asked = 0;
  const std::optional<FileLock> lock = FileLock::wait_for(
      path, [&](const std::string& holder) { told.push_back(holder); },
      [&] {
        if (++asked == 3) held.reset();
        return false;
      });
  EXPECT_TRUE(lock);
  EXPECT_THAT(told, testing::ElementsAre(HasSubstr(this_process())));
  EXPECT_FALSE(FileLock::wait_for(
      path, [](const std::string&) {}, [] { return true; }))
      << "asked to stop";
}

TEST(FileLock, ThatCannotBeMadeIsAnErrorThatNamesIt) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() + "/file", "no folder");
  EXPECT_THAT(config_error_of([&] { (void)FileLock::try_take(folder.path() + "/file/lock", Mode::kExclusive); }),
              HasSubstr(folder.path() + "/file"));
  std::filesystem::create_directory(folder.path() + "/lock");
  EXPECT_THAT(config_error_of([&] { (void)FileLock::try_take(folder.path() + "/lock", Mode::kExclusive); }),
              HasSubstr(folder.path() + "/lock: Is a directory"));
}

// A child that works on a locked folder also has the lock: while it outlives its killed parent, the folder stays
// locked.
TEST(FileLock, IsInheritedByChildrenThatAreToldSo) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/lock";
  const std::optional<FileLock> lock = FileLock::try_take(path, Mode::kExclusive);
  const std::string log = folder.path() + "/log";
  const std::string look = "readlink /proc/$$/fd/" + std::to_string(lock->descriptor()) + "; true";
  ChildProcess::Options options{.arguments = {"/bin/sh", "-c", look}, .environment = {}, .log = log};
  const auto ended = [](ChildProcess child) {
    while (!child.wait_for(std::chrono::seconds(1))) {
    }
    return child.poll()->succeeded();
  };
  EXPECT_TRUE(ended(ChildProcess::start(options)));
  EXPECT_EQ(comm::read_file(log), "") << "another child does not hold it";
  options.kept_descriptor = lock->descriptor();
  EXPECT_TRUE(ended(ChildProcess::start(options)));
  EXPECT_EQ(comm::read_file(log), std::filesystem::canonical(path).string() + "\n");
}

}  // namespace
}  // namespace droptest::experiments::file_lock_test
