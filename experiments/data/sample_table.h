// SPDX-License-Identifier: Apache-2.0
// The samples of training shards, numbered over all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "experiments/data/shard_config.h"

namespace droptest::experiments {

/// A sample is `length` tokens and the one after them: inputs and, one position later, targets. Samples of a shard lie
/// side by side and share that one token, so that each token but the first is a target once; a rest that is too short
/// for a sample is left out. Thread safety: const.
class SampleTable {
 public:
  /// Numbers all tokens of the files except the last `held_out` ones, which validate. Throws: ConfigError if no sample
  /// is left.
  SampleTable(const std::vector<ShardFile>& files, std::uint64_t token_bytes, std::uint64_t held_out, int length);

  /// The tokens of a sample in its file.
  struct Place {
    std::size_t shard = 0;          ///< number of the file
    std::uint64_t first_token = 0;  ///< place of the first token in the file
  };
  Place place(std::uint64_t sample) const;
  std::uint64_t samples() const { return first_samples_.back(); }
  std::uint64_t samples_of(std::size_t shard) const { return first_samples_[shard + 1] - first_samples_[shard]; }
  const std::vector<ShardFile>& files() const { return files_; }
  /// Bytes of the file before its first token.
  std::uint64_t header_bytes(std::size_t shard) const;
  int length() const { return length_; }
  std::uint64_t token_bytes() const { return token_bytes_; }
  /// A number that depends on the contents of the files, lengths and numbering: equal tables have equal ones.
  std::uint32_t fingerprint() const;

 private:
  std::vector<ShardFile> files_;
  std::uint64_t token_bytes_;
  int length_;
  std::vector<std::uint64_t> first_samples_;  ///< first sample of each file, and the number of all samples
};

std::uint64_t tokens_of(const std::vector<ShardFile>& files);

/// Tokens of the training shards that validate: none if there are validation shards, else the last round(fraction x
/// tokens).
std::uint64_t held_out_tokens(const ShardConfig& shards, double validation_fraction);

}  // namespace droptest::experiments
