// SPDX-License-Identifier: Apache-2.0
// The comparison of a file with its earlier version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace droptest::experiments {

/// The facts that tell a file from an earlier one under its name. Writes of equal size within one tick of the file
/// system's clock are not told apart.
struct FileVersion {
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  std::int64_t modified_nanoseconds = 0;  ///< nanoseconds since 1970
  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};

/// The version of the file that the path names now; absent: there is none.
std::optional<FileVersion> version_of(const std::string& path);

}  // namespace droptest::experiments
