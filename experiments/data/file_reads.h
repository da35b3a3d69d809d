// SPDX-License-Identifier: Apache-2.0
// Ranges of files in memory, with repeated attempts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

namespace droptest::experiments {

/// A range of a file could not be read; the next attempt may succeed.
class ReadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads ranges of files. Owner: one thread.
class FileReads {
 public:
  virtual ~FileReads() = default;
  /// Fills `bytes` with the bytes of the file from `offset` on. Throws: ReadError with the system's reason, or if the
  /// file ends earlier.
  virtual void read(const std::string& path, std::uint64_t offset, std::span<std::byte> bytes) = 0;
};

/// The files of this machine, read into memory by pread(). A file that another program cuts is an error of the call; a
/// mapping would end the process with SIGBUS. At most `most_open` files stay open; after an error a file is opened
/// again.
std::unique_ptr<FileReads> system_files(std::size_t most_open);

/// Waits for so many seconds, or less if waiting has become pointless.
using Pause = std::function<void(double seconds)>;

struct RetryRule {
  int attempts = 1;
  double backoff_seconds = 0;  ///< pause before the second attempt; twice as long before each further one
};

/// Reads as FileReads::read(). Returns the error of the last attempt; absent: `bytes` are filled.
std::optional<std::string> read_with_retries(FileReads& files, const std::string& path, std::uint64_t offset,
                                             std::span<std::byte> bytes, const RetryRule& rule, const Pause& pause);

}  // namespace droptest::experiments
