// SPDX-License-Identifier: Apache-2.0
#include "models/ops/offload_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <future>
#include <string>

#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"
#include "tests/models/offload_files.h"

namespace droptest::models::offload_file_test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t count, int value) { return Bytes(count, static_cast<std::byte>(value)); }

Bytes taken(OffloadFile& file, std::uint64_t key, std::size_t count) {
  Bytes bytes(count);
  file.take(key, bytes);
  return bytes;
}

TEST(OffloadFile, GivesBackTheLastValuesOfAKeyInAnyOrder) {
  OffloadFile file(make_offload_file(""));
  for (int round = 0; round < 3; ++round) {
    const std::size_t count = 1000 + 500 * static_cast<std::size_t>(round % 2);
    for (int key = 0; key < 7; ++key) file.put(static_cast<std::uint64_t>(key), filled(count, 10 * round + key));
    file.expect(5);
    file.expect(6);
    for (const int key : {6, 5, 0, 3, 0, 1, 2, 4}) {
      EXPECT_EQ(taken(file, static_cast<std::uint64_t>(key), count), filled(count, 10 * round + key)) << key;
    }
  }
}

// The file is not ready before both are put and changed.
TEST(OffloadFile, ValuesMayChangeBeforeTheyAreWritten) {
  std::promise<void> open;
  OffloadFile file(std::make_unique<GatedFile>(open.get_future().share()));
  Bytes values = filled(4096, 1);
  file.put(1, values);
  std::fill(values.begin(), values.end(), std::byte{2});
  file.put(2, values);
  std::fill(values.begin(), values.end(), std::byte{3});
  open.set_value();
  EXPECT_EQ(taken(file, 1, 4096), filled(4096, 1));
  EXPECT_EQ(taken(file, 2, 4096), filled(4096, 2));
}

// The owner continues while its file is blocked.
TEST(OffloadFile, OverlapsWithItsOwner) {
  std::promise<void> open;
  OffloadFile file(std::make_unique<GatedFile>(open.get_future().share()));
  file.put(1, filled(64, 1));
  file.expect(1);
  open.set_value();
  EXPECT_EQ(taken(file, 1, 64), filled(64, 1));
}

TEST(OffloadFile, EndsWhileItsFileHasWork) {
  std::promise<void> open;
  OffloadFile file(std::make_unique<GatedFile>(open.get_future().share()));
  file.put(1, filled(64, 1));
  file.expect(1);
  open.set_value();
}

TEST(OffloadFile, NamesAFileThatWasCut) {
  const TemporaryFolder folder;
  OffloadFile file(make_offload_file(folder.path()));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "nothing stays, however the program ends";
  file.put(1, filled(4096, 1));
  EXPECT_EQ(taken(file, 1, 4096), filled(4096, 1));
  cut_offload_files(folder.path(), 100);
  const std::string error = config_error_of([&] { taken(file, 1, 4096); });
  EXPECT_THAT(error, testing::HasSubstr("offload file " + folder.path() + "/droptest-offload-"));
  EXPECT_THAT(error, testing::HasSubstr("read 100 of 4104 bytes at 0: the file has been cut"));
}

// Later values restore the length of the file, with a hole before them.
TEST(OffloadFile, NamesAFileThatWasCutAndHasGrownAgain) {
  const TemporaryFolder folder;
  OffloadFile file(make_offload_file(folder.path()));
  for (const std::uint64_t key : {1, 2, 3}) file.put(key, filled(4096, 1));
  EXPECT_EQ(taken(file, 3, 4096), filled(4096, 1));
  cut_offload_files(folder.path(), 100);
  file.put(3, filled(4096, 2));
  EXPECT_EQ(taken(file, 3, 4096), filled(4096, 2));
  const std::string error = config_error_of([&] { taken(file, 1, 4096); });
  EXPECT_THAT(error, testing::HasSubstr("offload file " + folder.path() + "/droptest-offload-"));
  EXPECT_THAT(error, testing::HasSubstr("read 4096 bytes at 0 that were not written: the file has been cut"));
}

// A place that is written again would give a pending reader other values than it expects.
TEST(OffloadFile, ReadsNoOlderValuesOfAPlace) {
  std::promise<void> open;
  OffloadFile file(std::make_unique<GatedFile>(open.get_future().share()));
  file.put(1, filled(64, 1));
  file.put(1, filled(64, 2));
  file.expect(1);
  open.set_value();
  EXPECT_EQ(taken(file, 1, 64), filled(64, 2));
}

TEST(OffloadFile, NamesAFileThatIsFull) {
  const TemporaryFolder folder;
  OffloadFile file(make_offload_file(folder.path()));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const usual = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = config_error_of([&] {
    file.put(1, filled(4096, 1));
    taken(file, 1, 4096);
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, usual);
  EXPECT_THAT(error, testing::HasSubstr("offload file " + folder.path() + "/droptest-offload-"));
  EXPECT_THAT(error, testing::HasSubstr("wrote 1000 of 4104 bytes at 0: File too large"));
}

TEST(OffloadFile, NamesAFolderThatIsAbsent) {
  EXPECT_THAT(config_error_of([] { make_offload_file("/no/such/folder"); }),
              testing::AllOf(testing::StartsWith("offload file /no/such/folder/droptest-offload-"),
                             testing::HasSubstr("No such file or directory; want a directory to write in")));
}

}  // namespace
}  // namespace droptest::models::offload_file_test
