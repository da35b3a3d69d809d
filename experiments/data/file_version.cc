// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/file_version.h"

#include <sys/stat.h>

namespace droptest::experiments {

std::optional<FileVersion> version_of(const std::string& path) {
  constexpr std::int64_t kNanosecondsPerSecond = 1000000000;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileVersion{status.st_ino, static_cast<std::uint64_t>(status.st_size),
                     status.st_mtim.tv_sec * kNanosecondsPerSecond + status.st_mtim.tv_nsec};
}

}  // namespace droptest::experiments
