// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/file_store.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/rendezvous/launch_store.h"
#include "tests/comm/rank_processes.h"

namespace {

/// The step of another rank between the listing of the files and their removal: called once, before this process
/// removes the next file.
std::function<void()> before_next_removal;
std::atomic<bool> has_step = false;  ///< the running test has a step; other tests remove files in threads

template <typename Function>
Function* function_of_system(const char* name) {
  if (has_step.exchange(false)) std::exchange(before_next_removal, nullptr)();
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// These functions replace the system's functions in this program, for FileStore and the standard library.
extern "C" int unlink(const char* path) noexcept { return function_of_system<int(const char*)>("unlink")(path); }
extern "C" int unlinkat(int folder, const char* path, int flags) noexcept {
  return function_of_system<int(int, const char*, int)>("unlinkat")(folder, path, flags);
}

namespace droptest::comm::file_store_test {
namespace {

// Rank 0 reads the last key of rank 1, lists the files and begins to remove them; then rank 1 removes its draft, as the
// last action of setting that key.
TEST(FileStore, IsClearedWhileAWriterRemovesItsDraft) {
  const TemporaryDirectory directory;
  const std::filesystem::path folder = directory.path() / "test";
  const auto store = open_file_store(directory.path().string(), "test");
  EXPECT_TRUE(store->set_if_absent("left/0", ""));
  EXPECT_TRUE(store->set_if_absent("left/1", ""));
  const std::filesystem::path draft = folder / "left-1.draft.abcdef";
  std::filesystem::create_hard_link(folder / "left-1", draft);
  before_next_removal = [&] { EXPECT_TRUE(std::filesystem::remove(draft)); };
  has_step = true;
  store->clear();
  EXPECT_FALSE(before_next_removal) << "nothing was removed";
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(FileStore, IsClearedByTwoRanksAtOnce) {
  const TemporaryDirectory directory;
  const auto store = open_file_store(directory.path().string(), "test");
  const auto other = open_file_store(directory.path().string(), "test");
  for (const char* key : {"left/0", "left/1", "left/2"}) EXPECT_TRUE(store->set_if_absent(key, ""));
  before_next_removal = [&] { other->clear(); };
  has_step = true;
  store->clear();
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "test"));
  EXPECT_TRUE(std::filesystem::exists(directory.path()));
}

// Writers that share a process number, as processes of different hosts may, do not use each other's drafts.
TEST(FileStore, OfManyWritersOneIsFirstAndNoneFails) {
  const TemporaryDirectory directory;
  constexpr int kWriters = 8;
  constexpr int kKeys = 50;
  std::vector<std::atomic<int>> firsts(kKeys);
  std::atomic<int> arrived = 0;
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      const auto store = open_file_store(directory.path().string(), "test");
      for (int key = 0; key < kKeys; ++key) {
        ++arrived;
        while (arrived < kWriters * (key + 1)) std::this_thread::yield();  // all at once
        try {
          if (store->set_if_absent("key/" + std::to_string(key), std::to_string(writer))) {
            ++firsts[static_cast<std::size_t>(key)];
          }
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : firsts) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace droptest::comm::file_store_test
