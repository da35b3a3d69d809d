// SPDX-License-Identifier: Apache-2.0
// An open file of the system that closes itself.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace droptest::comm {

/// Owns a descriptor of the system, or none (below 0), and closes it.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int value) : value_(value) {}
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~FileDescriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int value() const { return value_; }
  bool is_open() const { return value_ >= 0; }
  /// Closes the file now, because a full disk may show itself only here. Returns 0, or the error.
  int close() {
    const int result = ::close(value_) == 0 ? 0 : errno;
    value_ = -1;
    return result;
  }

 private:
  int value_ = -1;
};

}  // namespace droptest::comm
