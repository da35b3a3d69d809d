// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/shard_plan.h"

#include <algorithm>

#include "sim/error.h"

namespace droptest::models {
namespace {

void validate(const ShardOptions& options, int ranks) {
  if (options.zero < 0 || options.zero > 3) {
    throw ConfigError("zero: got " + std::to_string(options.zero) + ", want 0, 1, 2 or 3");
  }
  if (options.zero > 0 && ranks == 1) {
    throw ConfigError("zero: got " + std::to_string(options.zero) +
                      " of one data-parallel rank, want 0, or more ranks");
  }
  const auto positive = [](const char* name, std::uint64_t bytes) {
    if (bytes == 0) throw ConfigError(std::string(name) + ": got 0, want at least 1 byte");
  };
  positive("bucket_bytes", options.bucket_bytes);
  positive("first_bucket_bytes", options.first_bucket_bytes);
  positive("gather_bucket_bytes", options.gather_bucket_bytes);
  DROPTEST_CHECK(options.micro_batches >= 1, "a step without micro-batches");
}

/// The end of each rank's part of [begin, end): the ends of chunks that cut it as evenly as possible.
std::vector<std::uint64_t> part_ends(std::uint64_t begin, std::uint64_t end,
                                     std::vector<std::uint64_t>::const_iterator first,
                                     std::vector<std::uint64_t>::const_iterator last, int ranks) {
  std::vector<std::uint64_t> ends;
  std::uint64_t from = begin;
  for (int r = 1; r < ranks; ++r) {
    const std::uint64_t ideal =
        begin + (end - begin) * static_cast<std::uint64_t>(r) / static_cast<std::uint64_t>(ranks);
    const auto above = std::lower_bound(first, last, ideal);
    std::uint64_t at = above == last ? end : *above;
    const std::uint64_t below = above == first ? begin : *std::prev(above);
    if (ideal - below < at - ideal) at = below;
    from = std::max(from, at);
    ends.push_back(from);
  }
  ends.push_back(end);
  return ends;
}

}  // namespace

ShardPlan::ShardPlan(const ParameterTable& table, std::uint64_t element_bytes, const ShardOptions& options, int ranks,
                     int rank)
    : options_(options) {
  validate(options, ranks);
  if (!options.shards_state()) {
    own_.push_back({0, table.trained_elems, 0});
    own_elems_ = table.trained_elems;
  }
  if (ranks == 1) return;
  const std::vector<std::uint64_t> ends = table.chunk_ends();
  auto first = ends.begin();
  std::uint64_t begin = 0;
  std::size_t unit = 0;
  while (first != ends.end()) {
    while (begin >= table.units[unit].offset + table.units[unit].count) ++unit;
    std::uint64_t bytes = begin == 0 ? options.first_bucket_bytes : options.bucket_bytes;
    if (options.shards_values()) bytes = options.gather_bucket_bytes;
    std::uint64_t most = begin + std::max<std::uint64_t>(1, bytes / element_bytes);
    if (options.zero >= 2) most = std::min(most, table.units[unit].offset + table.units[unit].count);
    const auto last = std::max(std::next(first), std::upper_bound(first, ends.end(), most));

    Bucket bucket;
    const std::string number = std::to_string(buckets_.size());
    bucket.gradients = "gradients." + number;
    bucket.parameters = "parameters." + number;
    bucket.offset = begin;
    bucket.count = *std::prev(last) - begin;
    bucket.last_unit = unit;
    while (begin + bucket.count > table.units[bucket.last_unit].offset + table.units[bucket.last_unit].count) {
      ++bucket.last_unit;
    }
    if (bucket.last_unit == unit) bucket.layer = table.units[unit].layer;
    std::uint64_t from = begin;
    for (const std::uint64_t to : part_ends(begin, begin + bucket.count, first, last, ranks)) {
      if (static_cast<int>(bucket.counts.size()) == rank) own_of_bucket_.push_back({from, to - from, 0});
      bucket.counts.push_back(to - from);
      from = to;
    }
    begin += bucket.count;
    first = last;
    buckets_.push_back(std::move(bucket));
  }
  if (!options.shards_state()) return;
  for (OwnPart& part : own_of_bucket_) {
    part.shard_offset = own_elems_;
    own_elems_ += part.count;
  }
  own_ = own_of_bucket_;
}

}  // namespace droptest::models
