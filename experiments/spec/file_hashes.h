// SPDX-License-Identifier: Apache-2.0
// Contents of the files that specs name, as hashes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <tuple>
#include <utility>

namespace droptest::experiments {

/// Hashes files, each once: a file is known by its device, inode, size and time of change. Thread safety: none.
class FileHashes {
 public:
  /// `on_piece` is called whenever a piece of a file has been read.
  explicit FileHashes(std::function<void()> on_piece = [] {}) : on_piece_(std::move(on_piece)) {}

  /// SHA-256 in 64 lower-case hex digits. Throws: ConfigError with the path and the system's reason, for a path that is
  /// no regular file, and for a file that changes while it is read.
  const std::string& of(const std::string& path);

  /// The known hashes of those files with the identities of the files, for remember() in another process. Files that
  /// are not there or were not hashed are left out.
  nlohmann::json known_of(std::span<const std::string> paths) const;
  /// Takes the hashes of known_of(): a file is read again only if its device, inode, size or time of change differs.
  /// Throws: ConfigError for another document.
  void remember(const nlohmann::json& known);

 private:
  using Identity = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t>;
  std::function<void()> on_piece_;
  std::map<Identity, std::string> known_;
};

}  // namespace droptest::experiments
