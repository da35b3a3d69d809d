// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/file_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "comm/rendezvous/launch_store.h"
#include "tests/comm/rank_processes.h"

namespace droptest::comm::file_store_test {
namespace {

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
