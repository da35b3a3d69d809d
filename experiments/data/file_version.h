// SPDX-License-Identifier: Apache-2.0
// Whether a file is the one that it was.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace droptest::experiments {

/// What tells a file from an earlier one under its name. Writes of equal size within one tick of the file system's
/// clock are not told apart.
struct FileVersion {
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  std::int64_t modified_nanoseconds = 0;  ///< since 1970
  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};

/// Of the file that the path names now; absent: there is none.
std::optional<FileVersion> version_of(const std::string& path);

}  // namespace droptest::experiments
