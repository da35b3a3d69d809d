// SPDX-License-Identifier: Apache-2.0
// An open file of the system that closes itself.
#pragma once

#include <unistd.h>

#include <cerrno>

namespace droptest::comm {

/// Owns a descriptor of the system, or none (below 0), and closes it.
class FileDescriptor {
 public:
  explicit FileDescriptor(int value) : value_(value) {}
  ~FileDescriptor() {
    if (value_ >= 0) ::close(value_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int value() const { return value_; }
  /// Closes the file now, because a full disk may show itself only here. Returns 0, or the error.
  int close() {
    const int result = ::close(value_) == 0 ? 0 : errno;
    value_ = -1;
    return result;
  }

 private:
  int value_;
};

}  // namespace droptest::comm
