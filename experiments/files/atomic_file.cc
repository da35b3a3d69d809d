// SPDX-License-Identifier: Apache-2.0
#include "experiments/files/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "comm/file_descriptor.h"
#include "comm/json/read_file.h"

namespace droptest::experiments {
namespace {

using comm::fail_on_file;

/// Removes the temporary file unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  void keep() { path_.clear(); }

 private:
  std::string path_;
};

/// Returns 0, or the error.
int write_all(int descriptor, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

/// Writes into an existing device or pipe, such as /dev/null, which stays.
void write_into(const std::string& path, const std::function<void(const WritePiece& write)>& content) {
  comm::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (file.value() < 0) fail_on_file("write", path, errno);
  content([&](std::string_view piece) {
    if (const int error = write_all(file.value(), piece)) fail_on_file("write", path, error);
  });
  if (const int error = file.close()) fail_on_file("write", path, error);
}

}  // namespace

void make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_on_file("create directory", path, error.value());
}

void write_file_atomically(const std::string& path, std::string_view content) {
  write_file_atomically(path, [content](const WritePiece& write) { write(content); });
}

void write_file_atomically(const std::string& given, const std::function<void(const WritePiece& write)>& content) {
  namespace fs = std::filesystem;
  std::error_code none;
  const fs::file_status status = fs::status(given, none);
  bool is_open_file = fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
  fs::path named = given;  // follows links, also to a file that is not there yet
  constexpr int kMostLinks = 40;
  for (int links = 0; links < kMostLinks && fs::is_symlink(named, none); ++links) {
    is_open_file = is_open_file || named.string().starts_with("/proc/");  // such as /dev/stdout, whatever it is
    named = named.parent_path() / fs::read_symlink(named);
  }
  if (is_open_file) return write_into(given, content);
  const std::string path = named.string();
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  make_directories(directory);

  // Exclusive creation: processes and threads that write one record at once use a file each, and the last one wins.
  std::string temporary;
  int descriptor = -1;
  for (int attempt = 0; descriptor < 0; ++attempt) {
    temporary = path + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(attempt);
    descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno != EEXIST) fail_on_file("write", path, errno);
  }
  comm::FileDescriptor file(descriptor);
  TemporaryFile guard(temporary);
  content([&](std::string_view piece) {
    if (const int error = write_all(file.value(), piece)) fail_on_file("write", path, error);
  });
  if (::fsync(file.value()) != 0) fail_on_file("sync", path, errno);
  if (const int error = file.close()) fail_on_file("write", path, error);
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail_on_file("rename to", path, errno);
  guard.keep();

  const comm::FileDescriptor folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.value() < 0) fail_on_file("sync", directory, errno);
  // Some file systems cannot sync a directory and say so with EINVAL; the rename has happened all the same.
  if (::fsync(folder.value()) != 0 && errno != EINVAL) fail_on_file("sync", directory, errno);
}

}  // namespace droptest::experiments
