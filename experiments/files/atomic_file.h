// SPDX-License-Identifier: Apache-2.0
// Files that appear whole or not at all.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace droptest::experiments {

/// Writes a temporary file next to `path`, syncs it, renames it over `path` and syncs the directory. On an error the
/// old file is as it was and the temporary one is gone. Missing directories are created. If `path` is a symbolic link,
/// the file that it names is written and the link stays. Devices and pipes are written into.
/// Throws: ConfigError with the path and the system's reason.
void write_file_atomically(const std::string& path, std::string_view content);
/// Writes content that comes in pieces: calls content(write), which calls write(piece).
using WritePiece = std::function<void(std::string_view)>;
void write_file_atomically(const std::string& path, const std::function<void(const WritePiece& write)>& content);

/// Creates a directory and its parents. Throws: ConfigError with the path and the system's reason.
void make_directories(const std::string& path);

}  // namespace droptest::experiments
