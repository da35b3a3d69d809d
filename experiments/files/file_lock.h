// SPDX-License-Identifier: Apache-2.0
// The right to write a run's folder, or the record of a sweep or search: one process at a time has it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "comm/file_descriptor.h"

namespace droptest::experiments {

/// Another process holds a lock that this one needs. The message names the lock and its holder.
class BusyError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The reaction to a lock that another process holds.
enum class IfBusy : std::uint8_t {
  kWait,  ///< wait until the holder ends
  kSkip,  ///< leave the work to the holder
  kFail,  ///< throw BusyError
};

/// A lock (flock) on a file that exists only for the lock. The file names its holder, for processes that find it busy.
/// Owner: the object; the destructor of the last holder removes the file. If a process ends without the destructor, the
/// kernel releases its lock once the children that inherited `descriptor` have ended, too. The open file holds the
/// lock, not the process: a second lock on one path is refused within a process as well.
class FileLock {
 public:
  enum class Mode : std::uint8_t { kShared, kExclusive };

  /// Makes missing folders. The file names an exclusive holder, and a shared one once it calls share(). Absent: another
  /// process holds the lock, and lock_holder() says who. Throws: ConfigError with the path and the system's reason.
  static std::optional<FileLock> try_take(const std::string& path, Mode mode);

  /// Waits until the exclusive lock is free. `on_busy` is called once, with the holder, if the lock is not free at
  /// once. Returns nothing if asked to stop. Blocks.
  static std::optional<FileLock> wait_for(const std::string& path,
                                          const std::function<void(const std::string&)>& on_busy,
                                          const std::function<bool()>& stop_requested);

  FileLock(FileLock&& other) noexcept = default;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

  /// Keeps the lock as a shared one, and names this process as its holder: of several, the last one that came.
  void share();

  /// The open file, for children that work under the lock (ChildProcess::Options::kept_descriptor): the lock lasts
  /// until all of them have ended, even if this process is killed.
  int descriptor() const { return file_.value(); }

 private:
  FileLock(std::string path, int descriptor) : path_(std::move(path)), file_(descriptor) {}
  std::string path_;
  comm::FileDescriptor file_;
};

/// The holder of a lock in words: "process 4711 on host node3".
std::string lock_holder(const std::string& path);

/// The state of a lock as seen without taking it.
enum class LockLook : std::uint8_t {
  kFree,       ///< no file, or one that a process of this machine left when it was killed
  kHeld,       ///< another process has it
  kElsewhere,  ///< the file names another machine, whose locks may not show here
};
LockLook look_at_lock(const std::string& path);

/// The text of a busy record: "results/tiny/cfeef1054d9213e7 is busy: process 4711 on host node3 is at work on it".
std::string busy_text(const std::string& what, const std::string& holder);

}  // namespace droptest::experiments
