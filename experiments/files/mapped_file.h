// SPDX-License-Identifier: Apache-2.0
// A file of any size as bytes, without a copy in this process.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace droptest::experiments {

/// A read-only mapping: processes that map the same file share its pages. Thread safety: const.
class MappedFile {
 public:
  /// Throws: ConfigError with the path and the system's reason, also if the path is no regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const;

  /// Throws: ConfigError if the file is now shorter than the mapping, since reading the missing pages would end the
  /// process; and if another program has written into it since, as its time of modification shows.
  void require_unchanged() const;

 private:
  struct Mapping;
  std::string path_;
  std::unique_ptr<const Mapping> mapping_;
};

}  // namespace droptest::experiments
