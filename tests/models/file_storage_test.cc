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

#include "sim/error.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::models {
namespace {

using Bytes = std::vector<std::byte>;

Bytes filled(std::size_t count, int value) { return Bytes(count, static_cast<std::byte>(value)); }
comm::Tensor tensor(Bytes& bytes) { return {comm::ElementType::kUint8, bytes, nullptr}; }

/// A file in memory that does nothing before it is opened.
class GatedFile final : public ByteFile {
 public:
  explicit GatedFile(std::shared_future<void> gate) : gate_(std::move(gate)) {}
  void reserve(std::uint64_t bytes, const std::string& /*purpose*/) override { content_.resize(bytes); }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    gate_.wait();
    std::copy(bytes.begin(), bytes.end(), content_.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) override {
    gate_.wait();
    const auto from = content_.begin() + static_cast<std::ptrdiff_t>(offset);
    std::copy(from, from + static_cast<std::ptrdiff_t>(bytes.size()), bytes.begin());
  }
  const std::string& name() const override { return name_; }

 private:
  std::string name_ = "gated file";
  std::shared_future<void> gate_;
  Bytes content_;
};

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

// A tensor that is written and then read into needs no wait between the two; and nothing waits for the file.
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

std::string failure_of(const std::function<void()>& use) {
  try {
    use();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(FileStorage, NamesAFileThatWasCut) {
  const TemporaryFolder folder;
  FileStorage storage(make_offload_file(folder.path()), 8192, "optimizer state");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "nothing stays, however the program ends";
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with(folder.path() + "/droptest-offload-")) continue;
    ASSERT_EQ(::ftruncate(std::stoi(entry.path().filename().string()), 5000), 0);
  }
  Bytes window(4096);
  const std::string error = failure_of([&] { storage.wait(storage.read(4096, tensor(window))); });
  EXPECT_THAT(error, testing::HasSubstr("offload file " + folder.path() + "/droptest-offload-"));
  EXPECT_THAT(error, testing::HasSubstr("read 904 of 4096 bytes at 4096: the file has been cut"));
  EXPECT_EQ(failure_of([&] { storage.write(0, tensor(window)); }), error) << "later calls fail, too";
}

TEST(FileStorage, NamesAFullDiskBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const usual = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = failure_of([&] { FileStorage(make_offload_file(folder.path()), 4096, "optimizer state"); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, usual);
  EXPECT_THAT(error, testing::HasSubstr("offload file " + folder.path() + "/droptest-offload-"));
  EXPECT_THAT(error, testing::HasSubstr("cannot reserve 4096 bytes for optimizer state: File too large; want room"));
}

}  // namespace
}  // namespace droptest::models
