// SPDX-License-Identifier: Apache-2.0
// Small runs on shards, with files that fail on demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "experiments/data/file_reads.h"
#include "experiments/data/sharded_data.h"
#include "experiments/spec/resolve.h"

namespace droptest::experiments {

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A headerless shard with the tokens first, ..., first + count - 1. Each token occurs once in all shards.
inline void write_shard(const std::string& path, int first, int count) {
  std::string bytes;
  for (int token = first; token < first + count; ++token) {
    bytes += {static_cast<char>(token & 255), static_cast<char>(token >> 8)};
  }
  write_bytes(path, bytes);
}

/// The reads that fail, and the reads that were tried. Shared by the ranks.
struct Faults {
  std::mutex mutex;
  std::set<std::pair<int, std::string>> broken;  ///< rank (-1: all) and end of the file's name
  std::map<std::string, int> failures_left;      ///< end of the file's name, and the number of reads that fail
  std::map<std::string, int> tried;              ///< number of reads of each path
  std::vector<double> pauses;

  /// Whether this read fails.
  bool fails(int rank, const std::string& path) {
    const std::lock_guard lock(mutex);
    ++tried[path];
    for (const auto& [of_rank, name] : broken) {
      if ((of_rank == -1 || of_rank == rank) && path.ends_with(name)) return true;
    }
    for (auto& [name, left] : failures_left) {
      if (path.ends_with(name) && left > 0) {
        --left;
        return true;
      }
    }
    return false;
  }
};

/// The files of this machine, with the faults.
class FaultyFiles final : public FileReads {
 public:
  FaultyFiles(Faults& faults, int rank) : faults_(faults), rank_(rank), files_(system_files(2)) {}
  void read(const std::string& path, std::uint64_t offset, std::span<std::byte> bytes) override {
    if (faults_.fails(rank_, path)) throw ReadError("read at byte " + std::to_string(offset) + ": made to fail");
    files_->read(path, offset, bytes);
  }

 private:
  Faults& faults_;
  int rank_;
  std::unique_ptr<FileReads> files_;
};

/// A clock with pauses that take no time.
inline FileAccess access_with(Faults& faults) {
  FileAccess access;
  access.open = [&faults](int rank) { return std::make_unique<FaultyFiles>(faults, rank); };
  access.pause = [&faults](double seconds) {
    const std::lock_guard lock(faults.mutex);
    faults.pauses.push_back(seconds);
  };
  return access;
}

/// Writes three shards of 85, 45 and 29 tokens to `folder`, which have 10 + 5 + 3 = 18 samples of 8 tokens, and one of
/// 200 tokens for validation.
inline void write_three_shards(const std::string& folder) {
  write_shard(folder + "/a.bin", 0, 85);
  write_shard(folder + "/b.bin", 85, 45);
  write_shard(folder + "/c.bin", 130, 29);
  write_shard(folder + "/v.val", 0, 200);
}

/// A run of one epoch over write_three_shards() in global batches of 4.
inline nlohmann::json sharded_spec(const std::string& folder) {
  return {{"name", "shards"},
          {"seed", 5},
          {"model", {{"layers", 1}, {"width", 16}, {"heads", 2}, {"context", 8}, {"vocabulary", 256}}},
          {"data",
           {{"shards", folder + "/*.bin"},
            {"validation_shards", folder + "/*.val"},
            {"format", "uint16"},
            {"retries", {{"attempts", 3}, {"backoff_seconds", 1}}}}},
          {"training", {{"epochs", 1}, {"batch_sequences", 1}, {"accumulation", 4}}},
          {"validation", {{"every_steps", 2}, {"tokens", 64}}},
          {"record", {{"every_steps", 1}, {"weights", "none"}}}};
}

/// The resolved spec, with the files that exist.
inline ResolvedRun resolved_with_files(const nlohmann::json& spec) {
  FileHashes files;
  return resolve(spec, "spec.json", &files);
}

}  // namespace droptest::experiments
