// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/sample_table.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "experiments/files/crc32c.h"
#include "sim/error.h"

namespace droptest::experiments {

SampleTable::SampleTable(const std::vector<ShardFile>& files, std::uint64_t token_bytes, std::uint64_t held_out,
                         int length)
    : files_(files), token_bytes_(token_bytes), length_(length) {
  const std::uint64_t all = tokens_of(files);
  std::uint64_t left = all - std::min(all, held_out);
  first_samples_.push_back(0);
  for (const ShardFile& file : files) {
    const std::uint64_t own = std::min(left, file.tokens);
    left -= own;
    const std::uint64_t samples = own == 0 ? 0 : (own - 1) / static_cast<std::uint64_t>(length);
    first_samples_.push_back(first_samples_.back() + samples);
  }
  if (samples() == 0) {
    throw ConfigError("training data: " + std::to_string(all - std::min(all, held_out)) + " tokens in " +
                      std::to_string(files.size()) + " shards, want at least " + std::to_string(length + 1) +
                      " in one of them (one sequence and its last target)");
  }
}

SampleTable::Place SampleTable::place(std::uint64_t sample) const {
  DROPTEST_CHECK(sample < samples(), "sample " + std::to_string(sample) + " of " + std::to_string(samples()));
  const auto after = std::upper_bound(first_samples_.begin(), first_samples_.end(), sample);
  const auto shard = static_cast<std::size_t>(after - first_samples_.begin()) - 1;
  return {shard, (sample - first_samples_[shard]) * static_cast<std::uint64_t>(length_)};
}

std::uint64_t SampleTable::header_bytes(std::size_t shard) const {
  return files_[shard].bytes - files_[shard].tokens * token_bytes_;
}

std::uint32_t SampleTable::fingerprint() const {
  std::vector<std::uint64_t> numbers{token_bytes_, static_cast<std::uint64_t>(length_)};
  for (const ShardFile& file : files_) {
    const std::uint32_t content = file.crc32c.value_or(crc32c(std::as_bytes(std::span(file.sha256))));
    numbers.insert(numbers.end(), {file.bytes, file.tokens, content});
  }
  numbers.insert(numbers.end(), first_samples_.begin(), first_samples_.end());
  return crc32c(std::as_bytes(std::span(numbers)));
}

std::uint64_t tokens_of(const std::vector<ShardFile>& files) {
  std::uint64_t tokens = 0;
  for (const ShardFile& file : files) tokens += file.tokens;
  return tokens;
}

std::uint64_t held_out_tokens(const ShardConfig& shards, double validation_fraction) {
  if (!shards.validation_patterns.empty()) return 0;
  const auto tokens = static_cast<double>(tokens_of(shards.files));
  return static_cast<std::uint64_t>(std::llround(validation_fraction * tokens));
}

}  // namespace droptest::experiments
