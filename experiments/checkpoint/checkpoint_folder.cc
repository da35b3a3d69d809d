// SPDX-License-Identifier: Apache-2.0
#include "experiments/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "comm/file_descriptor.h"
#include "comm/json/read_file.h"
#include "experiments/files/atomic_file.h"
#include "experiments/files/crc32c.h"
#include "experiments/files/mapped_file.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kUnfinished = ".part";
/// Suffix of a complete checkpoint under removal: it no longer has the name of a checkpoint.
constexpr std::string_view kRemoved = ".old";
constexpr std::string_view kDamaged = ".damaged";

std::optional<std::uint64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return step;
}

/// Empty if the folder is not there or cannot be read.
std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

void rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) comm::fail_on_file("rename to", to, errno);
}

/// Removes in two steps, so that no half of a checkpoint ever has the name of a whole one.
void remove_checkpoint(const std::string& path) {
  std::error_code ignored;
  const std::string removed = path + std::string(kRemoved);
  fs::rename(path, removed, ignored);
  fs::remove_all(removed, ignored);
}

}  // namespace

void sync_path(const std::string& path) {
  const comm::FileDescriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened.is_open()) comm::fail_on_file("sync", path, errno);
  // Some file systems cannot sync a directory and say so with EINVAL.
  const int error = ::fsync(opened.value()) == 0 ? 0 : errno;
  if (error != 0 && error != EINVAL) comm::fail_on_file("sync", path, error);
}

std::vector<std::uint64_t> CheckpointFolder::steps() const {
  std::vector<std::uint64_t> steps;
  for (const std::string& name : names_in(path_)) {
    const std::optional<std::uint64_t> step = step_of(name);
    if (step && fs::exists(of_step(*step) + "/manifest.json")) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Manifest CheckpointFolder::manifest(std::uint64_t step) const {
  const std::string path = of_step(step) + "/manifest.json";
  Manifest manifest = parse_manifest(comm::read_file(path), path);
  if (manifest.step != step) {
    throw ConfigError(path + ": /step: got " + std::to_string(manifest.step) + ", want " + std::to_string(step) +
                      ", the step of its folder");
  }
  return manifest;
}

void CheckpointFolder::begin(std::uint64_t step) const {
  std::error_code error;
  fs::remove_all(unfinished(step), error);
  if (error) throw ConfigError(unfinished(step) + ": cannot remove: " + error.message());
  make_directories(unfinished(step));
}

void CheckpointFolder::commit(const Manifest& manifest, int keep) const {
  const std::string from = unfinished(manifest.step);
  const std::string to = of_step(manifest.step);
  write_file_atomically(from + "/manifest.json", manifest_text(manifest));
  if (fs::exists(to)) remove_checkpoint(to);
  rename(from, to);
  sync_path(path_);
  write_file_atomically(path_ + "/LATEST", std::string(kStepPrefix) + std::to_string(manifest.step) + "\n");
  std::vector<std::uint64_t> all = steps();
  while (all.size() > static_cast<std::size_t>(keep)) {
    remove_checkpoint(of_step(all.front()));
    all.erase(all.begin());
  }
}

void CheckpointFolder::discard(std::uint64_t step) const {
  std::error_code ignored;
  fs::remove_all(unfinished(step), ignored);
}

void CheckpointFolder::set_aside(std::uint64_t step) const {
  const std::string to = of_step(step) + std::string(kDamaged);
  std::error_code ignored;
  fs::remove_all(to, ignored);
  fs::rename(of_step(step), to, ignored);
}

void CheckpointFolder::forget_after(std::uint64_t step) const {
  std::error_code of_rescue;
  fs::remove_all(rescue(), of_rescue);
  for (const std::string& name : names_in(path_)) {
    const std::optional<std::uint64_t> of = step_of(name);
    if (of && *of > step) remove_checkpoint(of_step(*of));
    const bool of_start = step == 0 && (name.ends_with(kDamaged) || name == kHookLog);
    if (!name.ends_with(kUnfinished) && !name.ends_with(kRemoved) && !of_start) continue;
    std::error_code ignored;
    fs::remove_all(path_ + "/" + name, ignored);
  }
}

void write_rank_file(const std::string& folder, const models::StoredTensors& tensors, RankFile& file) {
  file.bytes = 0;
  file.crc32c = 0;
  write_file_atomically(folder + "/" + file.file, [&](const WritePiece& write) {
    models::write_safetensors(tensors, {{"format", "pt"}}, [&](std::span<const std::byte> piece) {
      file.bytes += piece.size();
      file.crc32c = crc32c_continued(file.crc32c, piece);
      write(std::string_view(reinterpret_cast<const char*>(piece.data()), piece.size()));
    });
  });
}

namespace {

/// The bytes of a file, if they fit the manifest.
std::span<const std::byte> verified(const MappedFile& mapped, const std::string& path, const RankFile& file) {
  const std::span<const std::byte> bytes = mapped.bytes();
  if (bytes.size() != file.bytes) {
    throw ConfigError(path + ": got " + std::to_string(bytes.size()) + " bytes, want " + std::to_string(file.bytes) +
                      " as the manifest says: the file is damaged");
  }
  if (const std::uint32_t crc = crc32c(bytes); crc != file.crc32c) {
    throw ConfigError(path + ": the CRC-32C of its content is " + crc_text(crc) + ", want " + crc_text(file.crc32c) +
                      " as the manifest says: the file is damaged");
  }
  return bytes;
}

}  // namespace

models::StoredTensors read_rank_file(const std::string& folder, const RankFile& file) {
  const std::string path = folder + "/" + file.file;
  const MappedFile mapped(path);
  return models::parse_safetensors(verified(mapped, path, file), path);
}

void verify_rank_file(const std::string& folder, const RankFile& file) {
  const std::string path = folder + "/" + file.file;
  const MappedFile mapped(path);
  (void)verified(mapped, path, file);
}

}  // namespace droptest::experiments
