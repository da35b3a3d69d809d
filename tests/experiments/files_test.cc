// SPDX-License-Identifier: Apache-2.0
// Files appear whole or not at all, also when the disk is full, and metrics survive a crash.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/json/read_file.h"
#include "experiments/files/atomic_file.h"
#include "experiments/files/weights_file.h"
#include "experiments/records/metrics.h"
#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::files_test {
namespace {

using comm::read_file;

using testing::HasSubstr;

std::size_t files_in(const std::string& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

/// While alive, files of this process cannot grow beyond `bytes`: as on a full disk, but with EFBIG for ENOSPC.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{bytes, old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*old_handler_)(int);
  rlimit old_limit_{};
};

TEST(AtomicFile, WritesMakesFoldersAndReplaces) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a/b/f.json";
  write_file_atomically(path, "one");
  EXPECT_EQ(read_file(path), "one");
  write_file_atomically(path, std::string(1 << 20, 'x') + '\0');
  EXPECT_EQ(read_file(path).size(), (1U << 20) + 1);
  EXPECT_EQ(files_in(folder.path() + "/a/b"), 1U);
  EXPECT_EQ(std::filesystem::status(path).permissions() & std::filesystem::perms::group_read,
            std::filesystem::perms::group_read);
}

TEST(WeightsFile, RoundTripAndRefusalsThatNameThePathAndTheReason) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a/w.safetensors";
  std::vector<std::byte> bytes(60);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(37 * i + 11);
  const models::StoredTensors tensors = {{"x", {"F32", {3, 5}, bytes}}, {"y", {"U8", {0}, {}}}};
  for (int time = 0; time < 2; ++time) write_weights(path, tensors, {{"format", "pt"}});
  EXPECT_EQ(files_in(folder.path() + "/a"), 1U) << "nothing is left next to the file";
  const models::StoredTensors back = read_weights(path);
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back.at("x").bytes, bytes);
  EXPECT_EQ(back.at("x").shape, tensors.at("x").shape);
  EXPECT_THAT(config_error_of([&] { read_weights(folder.path() + "/absent"); }),
              HasSubstr("absent: No such file or directory"));
  EXPECT_THAT(config_error_of([&] { read_weights(folder.path()); }),
              HasSubstr(folder.path() + ": has neither model.safetensors nor model.safetensors.index.json"));
  std::filesystem::create_directory(folder.path() + "/taken");
  EXPECT_THAT(config_error_of([&] { write_weights(folder.path() + "/taken", tensors, {}); }), HasSubstr("rename to"));
  EXPECT_EQ(files_in(folder.path()), 2U) << "the partial file is gone";
}

TEST(AtomicFile, LinksStayAndPipesAreWrittenInto) {
  const TemporaryFolder folder;
  const std::string link = folder.path() + "/link";
  std::filesystem::create_directory(folder.path() + "/other");
  std::filesystem::create_symlink(folder.path() + "/other/file", link);
  for (const char* content : {"one", "two"}) {
    write_file_atomically(link, content);
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    EXPECT_EQ(read_file(folder.path() + "/other/file"), content);
  }
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  write_file_atomically(pipe, "three");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  std::array<char, 8> got{};
  EXPECT_EQ(::read(reader, got.data(), got.size()), 5);
  ::close(reader);
  // A link like /dev/stdout, with a text that is no path.
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  write_file_atomically("/dev/fd/" + std::to_string(ends[1]), "four");
  EXPECT_EQ(::read(ends[0], got.data(), got.size()), 4);
  for (const int end : ends) ::close(end);
  EXPECT_EQ(config_error_of([] { write_file_atomically("/dev/full", "x"); }),
            "write /dev/full: No space left on device");
}

TEST(AtomicFile, AFullDiskLeavesTheOldFileAndNoOther) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/f.json";
  write_file_atomically(path, "old");
  {
    const FileSizeLimit limit(4096);
    EXPECT_EQ(config_error_of([&path] { write_file_atomically(path, std::string(5000, 'x')); }),
              "write " + path + ": File too large");
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(files_in(folder.path()), 1U);
}

TEST(AtomicFile, ErrorsNameThePathAndTheReason) {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() + "/file", "");
  EXPECT_EQ(config_error_of([&] { write_file_atomically(folder.path() + "/file/x.json", ""); }),
            "create directory " + folder.path() + "/file: Not a directory");
  std::filesystem::create_directory(folder.path() + "/taken");
  write_file_atomically(folder.path() + "/taken/inside", "");
  EXPECT_EQ(config_error_of([&] { write_file_atomically(folder.path() + "/taken", "x"); }),
            "rename to " + folder.path() + "/taken: Is a directory");
  EXPECT_EQ(files_in(folder.path()), 2U) << "no temporary file stays behind";
  EXPECT_EQ(config_error_of([] { write_file_atomically("/proc/nowhere/x.json", "x"); }),
            "create directory /proc/nowhere: No such file or directory");
  EXPECT_EQ(config_error_of([&] { (void)read_file(folder.path() + "/absent"); }),
            "read " + folder.path() + "/absent: No such file or directory");
}

TEST(AtomicFile, AnUnwritableFolderIsNamed) {
  if (::geteuid() == 0) {
    // Root may write anywhere but to a file system that takes no files.
    EXPECT_THAT(config_error_of([] { write_file_atomically("/proc/self/x.json", "x"); }),
                HasSubstr("write /proc/self/x.json: "));
    return;
  }
  const TemporaryFolder folder;
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_EQ(config_error_of([&folder] { write_file_atomically(folder.path() + "/x.json", "x"); }),
            "write " + folder.path() + "/x.json: Permission denied");
}

TEST(AtomicFile, AReaderNeverSeesHalfAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/f";
  const std::string a(200000, 'a');
  const std::string b(200000, 'b');
  write_file_atomically(path, a);
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) write_file_atomically(path, i % 2 == 0 ? b : a);
  });
  std::thread rival([&] {
    for (int i = 0; i < 20; ++i) write_file_atomically(path, a);
  });
  for (int i = 0; i < 200; ++i) {
    const std::string seen = read_file(path);
    EXPECT_TRUE(seen == a || seen == b);
  }
  writer.join();
  rival.join();
  EXPECT_EQ(files_in(folder.path()), 1U);
}

MetricsLine line_of(std::uint64_t step) {
  MetricsLine line;
  line.step = step;
  line.train_loss = 1.0 / static_cast<double>(step + 1);
  return line;
}

std::vector<std::uint64_t> steps_in(const std::string& path) {
  std::vector<std::uint64_t> steps;
  for_each_line(path, [&steps](const nlohmann::json& line) { steps.push_back(line["step"].get<std::uint64_t>()); });
  return steps;
}

TEST(Metrics, EachLineIsThereWhenAppendReturns) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsWriter writer = MetricsWriter::create(path);
  for (std::uint64_t step = 0; step < 3; ++step) {
    writer.append(line_of(step));
    EXPECT_EQ(steps_in(path).size(), step + 1);
  }
  nlohmann::json last;
  for_each_line(path, [&last](const nlohmann::json& line) { last = line; });
  EXPECT_EQ(last["train_loss"], 1.0 / 3);
}

TEST(Metrics, AKilledProcessLosesNoLine) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  const pid_t child = ::fork();
  if (child == 0) {
    MetricsWriter writer = MetricsWriter::create(path);
    for (std::uint64_t step = 0; step < 50; ++step) writer.append(line_of(step));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(steps_in(path).size(), 50U);
}

TEST(Metrics, ATornLastLineIsLeftOutAndOneElsewhereIsAnError) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  std::ofstream(path) << "{\"step\": 0}\n{\"step\": 1}\n{\"step\": 2, \"tra";
  EXPECT_EQ(steps_in(path), (std::vector<std::uint64_t>{0, 1}));
  std::ofstream(path) << "{\"step\": 0}\n{\"st\n{\"step\": 2}\n";
  EXPECT_THAT(config_error_of([&path] { (void)steps_in(path); }), HasSubstr(path + ": line 2: line 1, column 5"));
  std::ofstream(path).flush();
  EXPECT_TRUE(steps_in(path).empty());
}

TEST(Metrics, ResumingCutsOffWhatIsTornOrLater) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  const std::string torn = "{\"step\":0}\n{\"step\":10}\n{\"step\":20}\n{\"step\":30}\n{\"ste";
  std::ofstream(path) << torn;
  MetricsWriter::resume(path, 20).append(line_of(25));
  EXPECT_EQ(steps_in(path), (std::vector<std::uint64_t>{0, 10, 20, 25}));
  std::ofstream(path) << torn;
  MetricsWriter::resume(path, 1000).append(line_of(40));
  EXPECT_EQ(steps_in(path), (std::vector<std::uint64_t>{0, 10, 20, 30, 40}));
  std::ofstream(path) << "rubbish\n";
  EXPECT_THAT(config_error_of([&path] { (void)MetricsWriter::resume(path, 1); }), HasSubstr("not JSON"));
  (void)MetricsWriter::resume(folder.path() + "/absent", 1);
  EXPECT_TRUE(steps_in(folder.path() + "/absent").empty());
}

std::string missing(std::uint64_t every, const std::vector<std::uint64_t>& steps, std::uint64_t up_to) {
  MissingLines lines(every);
  for (const std::uint64_t step : steps) lines.has(step);
  return lines.text_up_to(up_to);
}

TEST(Metrics, MissingLinesAreThoseOfTheMultiplesThatAFileLacks) {
  EXPECT_EQ(missing(1, {0, 1, 2}, 2), "");
  EXPECT_EQ(missing(1, {}, 2), "0 to 2");
  EXPECT_EQ(missing(1, {0, 3, 4}, 6), "1 to 2, 5 to 6");
  EXPECT_EQ(missing(10, {0, 10, 15, 20}, 29), "") << "more lines than asked for";
  EXPECT_EQ(missing(10, {0, 15, 40}, 50), "10, 20 to 30, 50");
  EXPECT_EQ(missing(0, {}, 50), "");
}

TEST(Metrics, ResumingKeepsLongFilesToTheByte) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  std::string text;
  std::string kept;
  for (int step = 0; step < 4000; ++step) {
    text += "{\"step\":" + std::to_string(step) + ",\"x\":\"" + std::string(static_cast<std::size_t>(step % 97), 'a') +
            "\"}\n";
    if (step == 3210) kept = text;
  }
  std::ofstream(path) << text;
  std::size_t lines = 0;
  (void)MetricsWriter::resume(path, 3210, [&lines](const nlohmann::json&) { ++lines; });
  EXPECT_EQ(comm::read_file(path), kept);
  EXPECT_EQ(lines, 3211U);
}

TEST(Metrics, CreatingReplacesAnEarlierFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  std::ofstream(path) << "{\"step\":0}\n";
  MetricsWriter::create(path).append(line_of(7));
  EXPECT_EQ(steps_in(path), (std::vector<std::uint64_t>{7}));
}

TEST(Metrics, AFullDiskIsAnErrorAndTearsNothing) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  std::size_t written = 0;
  {
    MetricsWriter writer = MetricsWriter::create(path);
    const FileSizeLimit limit(100);
    std::string error;
    while (error.empty() && written < 100) {
      error = config_error_of([&] { writer.append(line_of(written)); });
      if (error == "(no error)") {
        error.clear();
        ++written;
      }
    }
    EXPECT_EQ(error, "write " + path + ": File too large");
  }
  EXPECT_GT(written, 0U);
  EXPECT_LT(written, 10U);
  EXPECT_EQ(steps_in(path).size(), written);
  EXPECT_EQ(read_file(path).back(), '\n');
  EXPECT_THAT(config_error_of([] { MetricsWriter::create("/dev/full").append(line_of(1)); }),
              HasSubstr("write /dev/full: No space left on device"));
}

}  // namespace
}  // namespace droptest::experiments::files_test
