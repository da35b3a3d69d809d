// SPDX-License-Identifier: Apache-2.0
// Offload files for tests: one in memory that can be blocked, and truncation of files on disk.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "models/ops/offload_file.h"

namespace droptest::models {

/// A file in memory that blocks until it is opened.
class GatedFile final : public ByteFile {
 public:
  explicit GatedFile(std::shared_future<void> gate) : gate_(std::move(gate)) {}
  void reserve(std::uint64_t bytes, const std::string& /*purpose*/) override { content_.resize(bytes); }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    gate_.wait();
    content_.resize(std::max<std::size_t>(content_.size(), offset + bytes.size()));
    std::copy(bytes.begin(), bytes.end(), content_.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) override {
    gate_.wait();
    const auto from = content_.begin() + static_cast<std::ptrdiff_t>(offset);
    std::copy(from, from + static_cast<std::ptrdiff_t>(bytes.size()), bytes.begin());
  }
  const std::string& name() const override { return name_; }

 private:
  std::string name_ = "gated file";
  std::shared_future<void> gate_;
  std::vector<std::byte> content_;
};

/// Truncates the open offload files that this process has made in the folder.
inline void cut_offload_files(const std::string& folder, off_t bytes) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with(folder + "/droptest-offload-")) continue;
    ASSERT_EQ(::ftruncate(std::stoi(entry.path().filename().string()), bytes), 0);
  }
}

}  // namespace droptest::models
