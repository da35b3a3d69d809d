// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/file_reads.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <list>
#include <memory>
#include <system_error>
#include <utility>

#include "comm/file_descriptor.h"

namespace droptest::experiments {
namespace {

[[noreturn]] void fail_read(const std::string& what, int error) {
  throw ReadError(what + ": " + std::error_code(error, std::system_category()).message());
}

class SystemFiles final : public FileReads {
 public:
  explicit SystemFiles(std::size_t most_open) : most_open_(most_open) {}

  void read(const std::string& path, std::uint64_t offset, std::span<std::byte> bytes) override {
    try {
      read_from(descriptor_of(path), offset, bytes);
    } catch (const ReadError&) {
      open_.remove_if([&path](const auto& one) { return one.first == path; });
      throw;
    }
  }

 private:
  /// The most recently used file is the first one.
  int descriptor_of(const std::string& path) {
    for (auto one = open_.begin(); one != open_.end(); ++one) {
      if (one->first != path) continue;
      open_.splice(open_.begin(), open_, one);
      return open_.front().second->value();
    }
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail_read("open", errno);
    auto opened = std::make_unique<comm::FileDescriptor>(descriptor);
    // Samples are read in random order: the kernel's own read-ahead would read what is not needed.
    (void)::posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);
    while (open_.size() >= most_open_) open_.pop_back();
    open_.emplace_front(path, std::move(opened));
    return open_.front().second->value();
  }

  static void read_from(int descriptor, std::uint64_t offset, std::span<std::byte> bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t got =
          ::pread(descriptor, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_read("read at byte " + std::to_string(offset + done), errno);
      if (got == 0) {
        throw ReadError("the file ends before byte " + std::to_string(offset + bytes.size()));
      }
      done += static_cast<std::size_t>(got);
    }
  }

  std::size_t most_open_;
  std::list<std::pair<std::string, std::unique_ptr<comm::FileDescriptor>>> open_;
};

}  // namespace

std::unique_ptr<FileReads> system_files(std::size_t most_open) { return std::make_unique<SystemFiles>(most_open); }

std::optional<std::string> read_with_retries(FileReads& files, const std::string& path, std::uint64_t offset,
                                             std::span<std::byte> bytes, const RetryRule& rule, const Pause& pause) {
  double seconds = rule.backoff_seconds;
  for (int attempt = 1;; ++attempt) {
    try {
      files.read(path, offset, bytes);
      return std::nullopt;
    } catch (const ReadError& error) {
      if (attempt >= rule.attempts) return error.what();
    }
    pause(seconds);
    seconds *= 2;
  }
}

}  // namespace droptest::experiments
