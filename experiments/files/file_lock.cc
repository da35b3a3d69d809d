// SPDX-License-Identifier: Apache-2.0
#include "experiments/files/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "comm/host_name.h"
#include "comm/json/read_file.h"
#include "experiments/files/atomic_file.h"

namespace droptest::experiments {
namespace {

using comm::fail_on_file;

constexpr std::chrono::milliseconds kLockPollInterval{50};
constexpr std::chrono::milliseconds kLookTime{2};
constexpr int kMostLooks = 50;

/// Whether `path` still names the open file: its holder may have removed it between our opening and our locking it.
bool is_named(int descriptor, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

std::string on_this_host() { return " on host " + comm::host_name(); }

/// Lets the open file name this process.
void write_name(int descriptor, const std::string& path) {
  const std::string name = "process " + std::to_string(::getpid()) + on_this_host() + "\n";
  if (::ftruncate(descriptor, 0) != 0 ||
      ::pwrite(descriptor, name.data(), name.size(), 0) != static_cast<ssize_t>(name.size())) {
    fail_on_file("write lock", path, errno);
  }
}

}  // namespace

std::optional<FileLock> FileLock::try_take(const std::string& path, Mode mode) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) make_directories(parent.string());
  for (int looks = 0;;) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) fail_on_file("open lock", path, errno);
    FileLock lock(path, descriptor);
    if (::flock(descriptor, (mode == Mode::kExclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
      const int error = errno;
      lock.path_.clear();  // the holder removes the file
      if (error == EWOULDBLOCK) {
        // A process that only looks at the lock holds it as a shared one for a moment.
        const bool is_shared = mode == Mode::kExclusive && ::flock(descriptor, LOCK_SH | LOCK_NB) == 0;
        if (!is_shared || ++looks > kMostLooks) return std::nullopt;
        ::flock(descriptor, LOCK_UN);
        std::this_thread::sleep_for(kLookTime);
        continue;
      }
      if (error != EINTR) fail_on_file("lock", path, error);
    } else if (!is_named(descriptor, path)) {
      lock.path_.clear();
    } else {
      if (mode == Mode::kExclusive) write_name(descriptor, path);
      return lock;
    }
  }
}

std::optional<FileLock> FileLock::wait_for(const std::string& path,
                                           const std::function<void(const std::string&)>& on_busy,
                                           const std::function<bool()>& stop_requested) {
  for (bool told = false; !stop_requested(); std::this_thread::sleep_for(kLockPollInterval)) {
    if (std::optional<FileLock> lock = try_take(path, Mode::kExclusive)) return lock;
    if (!std::exchange(told, true)) on_busy(lock_holder(path));
  }
  return std::nullopt;
}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  return *this;
}

FileLock::~FileLock() {
  if (!file_.is_open()) return;
  // The file is removed before the lock ends, so that a later holder's file stays; and only if no other shares the
  // lock.
  if (!path_.empty() && ::flock(descriptor(), LOCK_EX | LOCK_NB) == 0) ::unlink(path_.c_str());
}

void FileLock::share() {
  if (::flock(descriptor(), LOCK_SH) != 0) fail_on_file("share lock", path_, errno);
  write_name(descriptor(), path_);
}

std::string lock_holder(const std::string& path) {
  std::array<char, 512> text{};
  const comm::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.is_open()) {
    const ssize_t got = ::read(file.value(), text.data(), text.size() - 1);
    if (got > 0) {
      const std::string holder(text.data(), static_cast<std::size_t>(got));
      return holder.substr(0, holder.find('\n'));
    }
  }
  return "another process";  // that has just come, or is just leaving
}

LockLook look_at_lock(const std::string& path) {
  bool is_held = false;
  {
    const comm::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open()) return LockLook::kFree;
    is_held = ::flock(file.value(), LOCK_SH | LOCK_NB) != 0;
  }
  if (is_held) return LockLook::kHeld;
  const std::string holder = lock_holder(path);
  const bool names_a_host = holder.find(" on host ") != std::string::npos;
  return names_a_host && !holder.ends_with(on_this_host()) ? LockLook::kElsewhere : LockLook::kFree;
}

std::string busy_text(const std::string& what, const std::string& holder) {
  return what + " is busy: " + holder + " is at work on it";
}

}  // namespace droptest::experiments
