// SPDX-License-Identifier: Apache-2.0
// The opened shards of a run, which all ranks of a process share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/data/file_reads.h"
#include "experiments/data/sample_table.h"
#include "experiments/data/token_source.h"

namespace droptest::experiments {

/// A shard that could not be read, or has other content than its manifest says.
struct ShardFailure {
  std::size_t shard = 0;  ///< number of the file
  std::string error;
};

/// The way in which a process reaches its files. Tests put in their own.
struct FileAccess {
  /// Reads for one thread of a rank.
  std::function<std::unique_ptr<FileReads>(int rank)> open = [](int) { return system_files(32); };
  Pause pause;  ///< empty: waits for that time
};

/// Thread safety: const.
class ShardedData {
 public:
  /// `shards` has its files; the last part of their tokens validates, unless other files do. Compares the content of
  /// files that have a checksum with it, which takes nearly all of the time. Throws: ConfigError if no sample is left
  /// to train on.
  ShardedData(const ShardConfig& shards, double validation_fraction, int sequence_tokens, int vocabulary,
              FileAccess access);

  const SampleTable& table() const { return table_; }
  const std::vector<ShardFailure>& damaged() const { return damaged_; }
  double lost_limit() const { return lost_limit_; }
  const FileAccess& access() const { return access_; }

  /// Reads the tokens of a sample. Shapes: tokens [length + 1]. Returns the error of the last attempt, or that the file
  /// is another one than at the beginning; absent: the tokens are there.
  /// Throws: ConfigError for a token that the model does not have, or text that is not UTF-8.
  std::optional<std::string> read(std::uint64_t sample, std::span<std::int32_t> tokens, FileReads& files,
                                  const Pause& pause) const;

 private:
  SampleTable table_;
  ShardConfig::Content content_;
  int vocabulary_;
  RetryRule retries_;
  double lost_limit_;
  FileAccess access_;
  std::vector<ShardFailure> damaged_;
  /// Version of each file when the run began; absent: it was not there.
  std::vector<std::optional<FileVersion>> versions_;
};

/// Reads the first `needed` validation tokens of the shards into memory: those of the validation shards, else the last
/// ones of the training shards. Throws: ConfigError with the tokens needed, if there are fewer; with the name of a file
/// that cannot be read, or that differs from its manifest.
Tokens read_validation_tokens(const ShardConfig& shards, double validation_fraction, int vocabulary,
                              std::uint64_t needed, const FileAccess& access);

}  // namespace droptest::experiments
