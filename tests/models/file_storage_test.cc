// SPDX-License-Identifier: Apache-2.0
#include "models/ops/file_storage.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"
#include "tests/models/offload_files.h"

namespace droptest::models::file_storage_test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t count, int value) { return Bytes(count, static_cast<std::byte>(value)); }
comm::Tensor tensor(Bytes& bytes) { return {comm::ElementType::kUint8, bytes, nullptr}; }

TEST(FileStorage, IsZeroAtFirstAndGivesBackWhatWasWritten) {
  FileStorage storage(make_offload_file(""), 10000, "numbers");
  Bytes got = filled(10000, 9);
  storage.wait(storage.read(0, tensor(got)));
  EXPECT_EQ(got, filled(10000, 0));
  Bytes one = filled(3000, 1);
  Bytes two = filled(500, 2);
  storage.write(4000, tensor(one));
  storage.write(5000, tensor(two));
  storage.wait(storage.read(0, tensor(got)));
  EXPECT_EQ(got[3999], std::byte{0});
  EXPECT_EQ(got[4999], std::byte{1});
  EXPECT_EQ(got[5000], std::byte{2});
  EXPECT_EQ(got[5500], std::byte{1});
  EXPECT_EQ(got[7000], std::byte{0});
  EXPECT_THROW(storage.read(9999, tensor(two)), CheckError);
}

// A tensor that is written and then read into needs no wait in between, and no call waits for the file.
TEST(FileStorage, CopiesInTheOrderOfTheCallsWhileItsOwnerGoesOn) {
  std::promise<void> open;
  FileStorage storage(std::make_unique<GatedFile>(open.get_future().share()), 200, "numbers");
  Bytes window = filled(100, 1);
  Bytes other(100);
  storage.write(0, tensor(window));
  storage.read(100, tensor(window));
  const Storage::Ticket ticket = storage.read(0, tensor(other));
  open.set_value();
  storage.wait(ticket);
  EXPECT_EQ(window, filled(100, 0));
  EXPECT_EQ(other, filled(100, 1));
}

TEST(FileStorage, UsesNoTensorAfterItsEnd) {
  std::promise<void> open;
  Bytes window(100);
  auto storage = std::make_unique<FileStorage>(std::make_unique<GatedFile>(open.get_future().share()), 100, "numbers");
  storage->read(0, tensor(window));
  open.set_value();
  storage.reset();
  window = {};
}

TEST(FileStorage, NamesAFileThatWasCut) {
  const TemporaryFolder folder;
  FileStorage storage(make_offload_file(folder.path()), 8192, "optimizer state");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "nothing stays, however the program ends";
  cut_offload_files(folder.path(), 5000);
  Bytes window(4096);
  const std::string error = config_error_of([&] { storage.wait(storage.read(4096, tensor(window))); });
  EXPECT_THAT(error, testing::HasSubstr("offload file " + folder.path() + "/droptest-offload-"));
  EXPECT_THAT(error, testing::HasSubstr("read 904 of 4096 bytes at 4096: the file has been cut"));
  EXPECT_EQ(config_error_of([&] { storage.write(0, tensor(window)); }), error) << "later calls fail, too";
}

TEST(FileStorage, NamesAFullDiskBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const usual = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error =
      config_error_of([&] { FileStorage(make_offload_file(folder.path()), 4096, "optimizer state"); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, usual);
  EXPECT_THAT(error, testing::HasSubstr("offload file " + folder.path() + "/droptest-offload-"));
  EXPECT_THAT(error, testing::HasSubstr("cannot reserve 4096 bytes for optimizer state: File too large; want room"));
}

}  // namespace
}  // namespace droptest::models::file_storage_test
