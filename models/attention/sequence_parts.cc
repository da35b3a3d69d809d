// SPDX-License-Identifier: Apache-2.0
#include "models/attention/sequence_parts.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "sim/error.h"

namespace droptest::models {
namespace {

std::vector<PositionRange> even_ranges(std::int64_t length, int parts) {
  std::vector<PositionRange> ranges;
  std::int64_t begin = 0;
  for (const std::uint64_t count : comm::even_counts(static_cast<std::uint64_t>(length), parts)) {
    ranges.push_back({begin, static_cast<std::int64_t>(count)});
    begin += static_cast<std::int64_t>(count);
  }
  return ranges;
}

void check_length(std::int64_t length) {
  if (length < 0) throw ConfigError("sequence: got length " + std::to_string(length) + ", want at least 0");
}

}  // namespace

SequenceParts::SequenceParts(std::vector<std::vector<PositionRange>> ranks) : ranges_(std::move(ranks)) {
  std::vector<PositionRange> all;
  for (std::vector<PositionRange>& ranges : ranges_) {
    std::erase_if(ranges, [](const PositionRange& range) { return range.count == 0; });
    all.insert(all.end(), ranges.begin(), ranges.end());
    std::int64_t& length = lengths_.emplace_back();
    for (const PositionRange& range : ranges) length += range.count;
  }
  std::ranges::sort(all, {}, &PositionRange::begin);
  for (const PositionRange& range : all) {
    if (range.begin != length_ || range.count < 0) {
      throw ConfigError("sequence: position " + std::to_string(std::min(range.begin, length_)) + " is on " +
                        (range.begin < length_ ? "two ranks" : "no rank") + ", want each position on one rank");
    }
    length_ += range.count;
  }
}

SequenceParts SequenceParts::contiguous(std::span<const std::int64_t> lengths) {
  std::vector<std::vector<PositionRange>> ranks;
  std::int64_t begin = 0;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    if (lengths[rank] < 0) {
      throw ConfigError("sequence: rank " + std::to_string(rank) + ": got length " + std::to_string(lengths[rank]) +
                        ", want at least 0");
    }
    ranks.push_back({{begin, lengths[rank]}});
    begin += lengths[rank];
  }
  return SequenceParts(std::move(ranks));
}

SequenceParts SequenceParts::even(std::int64_t length, int ranks) {
  check_length(length);
  std::vector<std::vector<PositionRange>> parts;
  for (const PositionRange& range : even_ranges(length, ranks)) parts.push_back({range});
  return SequenceParts(std::move(parts));
}

SequenceParts SequenceParts::zigzag(std::int64_t length, int ring, int ulysses) {
  check_length(length);
  const std::vector<PositionRange> chunks = even_ranges(length, 2 * ring);
  std::vector<std::vector<PositionRange>> ranks;
  for (int part = 0; part < ring; ++part) {
    const PositionRange low = chunks[static_cast<std::size_t>(part)];
    const PositionRange high = chunks[static_cast<std::size_t>(2 * ring - 1 - part)];
    for (const PositionRange& cut : even_ranges(low.count + high.count, ulysses)) {
      const std::int64_t of_low = std::clamp<std::int64_t>(low.count - cut.begin, 0, cut.count);
      const std::int64_t skipped = std::max<std::int64_t>(0, cut.begin - low.count);
      ranks.push_back({{low.begin + cut.begin, of_low}, {high.begin + skipped, cut.count - of_low}});
    }
  }
  return SequenceParts(std::move(ranks));
}

SequenceParts SequenceParts::agreed(std::int64_t length, comm::Communicator& group) {
  check_length(length);
  const std::vector<std::uint64_t> counts(static_cast<std::size_t>(group.world_size()), 1);
  const std::array<std::int64_t, 1> mine = {length};
  std::vector<std::int64_t> lengths(counts.size());
  group.all_gather(comm::ConstTensor(std::span<const std::int64_t>(mine)), comm::Tensor(std::span(lengths)), counts,
                   {sim::TrafficClass::kControl, "sequence.lengths"});
  return contiguous(lengths);
}

std::vector<TokenRun> SequenceParts::runs(int first_rank, int count) const {
  std::vector<TokenRun> runs;
  std::int64_t index = 0;
  for (int rank = first_rank; rank < first_rank + count; ++rank) {
    for (const PositionRange& range : ranges(rank)) {
      const bool goes_on = !runs.empty() && runs.back().position + runs.back().count == range.begin;
      if (goes_on) {
        runs.back().count += range.count;
      } else {
        runs.push_back({index, range.count, range.begin});
      }
      index += range.count;
    }
  }
  return runs;
}

std::vector<std::int64_t> SequenceParts::positions(int first_rank, int count) const {
  std::vector<std::int64_t> positions;
  for (const TokenRun& run : runs(first_rank, count)) {
    for (std::int64_t i = 0; i < run.count; ++i) positions.push_back(run.position + i);
  }
  return positions;
}

}  // namespace droptest::models
