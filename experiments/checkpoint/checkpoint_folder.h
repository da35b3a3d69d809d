// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run in its folder: step-<N>/ for each, and LATEST (docs/checkpoints.md).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "experiments/files/manifest.h"
#include "models/files/safetensors.h"

namespace droptest::experiments {

/// Complete checkpoints and ones that are being written. Only rank 0 uses it, except write_rank_file() and
/// read_rank_file().
class CheckpointFolder {
 public:
  /// `path`: <run>/checkpoints, which need not be there.
  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string of_step(std::uint64_t step) const { return path_ + "/step-" + std::to_string(step); }
  /// The folder of a checkpoint's files until it is complete.
  std::string unfinished(std::uint64_t step) const { return of_step(step) + ".part"; }

  /// The steps of the checkpoints with a manifest, in ascending order, whether or not they are intact.
  std::vector<std::uint64_t> steps() const;
  /// Throws: ConfigError for a manifest that is not there or is damaged.
  Manifest manifest(std::uint64_t step) const;

  /// Makes an empty folder for the files of a checkpoint. Throws: ConfigError.
  void begin(std::uint64_t step) const;
  /// Completes a checkpoint: writes the manifest, the final name and LATEST, and removes all but the `keep` newest
  /// checkpoints. Throws: ConfigError; then the older ones are as they were.
  void commit(const Manifest& manifest, int keep) const;
  /// Removes a checkpoint that is not complete. Errors are ignored: begin() removes it, too.
  void discard(std::uint64_t step) const;
  /// Takes a checkpoint that cannot be read out of the list, and keeps its files as step-<N>.damaged: the cause may be
  /// the disk of one rank. Errors are ignored.
  void set_aside(std::uint64_t step) const;
  /// The folder in which ranks leave their state when another rank dies (rescue.h).
  std::string rescue() const { return path_ + "/rescue"; }
  /// The output of the commands before and after checkpoints.
  std::string hook_log() const { return path_ + "/" + kHookLog; }
  /// Removes all checkpoints that are not complete, of a process that was killed, and complete ones after `step`; with
  /// 0 also those set aside and the output of commands.
  void forget_after(std::uint64_t step) const;

 private:
  static constexpr const char* kHookLog = "hook.log";
  std::string path_;
};

/// Writes a file's content, or the entries of a folder, through to the disk. Throws: ConfigError.
void sync_path(const std::string& path);

/// Writes a rank's tensors, synced; fills in size and checksum. Throws: ConfigError.
void write_rank_file(const std::string& folder, const models::StoredTensors& tensors, RankFile& file);

/// Reads a rank's file, which must have the size and checksum of the manifest. Throws: ConfigError that names the file.
models::StoredTensors read_rank_file(const std::string& folder, const RankFile& file);
/// The check of read_rank_file() without the tensors.
void verify_rank_file(const std::string& folder, const RankFile& file);

}  // namespace droptest::experiments
