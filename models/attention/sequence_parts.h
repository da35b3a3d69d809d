// SPDX-License-Identifier: Apache-2.0
// Which rank of a sequence group has which tokens of a sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "models/attention/token_attention.h"

namespace droptest::models {

/// The positions begin, ..., begin + count - 1 of a sequence.
struct PositionRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  friend bool operator==(const PositionRange&, const PositionRange&) = default;
};

/// The positions of each rank of a sequence group, in the order of the rank's tokens. Each position of the sequence is
/// on exactly one rank; a rank may have no token. All ranks have the same table, so that calls do not need to exchange
/// lengths.
class SequenceParts {
 public:
  /// `ranks` has the ranges of each rank. Throws: ConfigError that names the position that no rank or two ranks have.
  explicit SequenceParts(std::vector<std::vector<PositionRange>> ranks);
  /// Consecutive parts of these lengths. Throws: ConfigError that names the rank for a negative length.
  static SequenceParts contiguous(std::span<const std::int64_t> lengths);
  /// Consecutive parts; the first length % ranks parts have one token more.
  static SequenceParts even(std::int64_t length, int ranks);
  /// Cuts the sequence into 2 x `ring` chunks, as even as possible; part r has the chunks r and 2 ring - 1 - r, so that
  /// a causal mask gives all parts the same work. Each part is then cut evenly over `ulysses` neighbouring ranks.
  /// Source: Zhu, ring-flash-attention (zigzag).
  static SequenceParts zigzag(std::int64_t length, int ring, int ulysses = 1);
  /// Consecutive parts; each rank passes its own length. The ranks exchange the lengths in class control. They need no
  /// other exchange until a length changes. Ranks: all.
  static SequenceParts agreed(std::int64_t length, comm::Communicator& group);

  int ranks() const { return static_cast<int>(ranges_.size()); }
  std::int64_t length() const { return length_; }
  /// The number of tokens of each rank.
  std::span<const std::int64_t> lengths() const { return lengths_; }
  std::int64_t length_of(int rank) const { return lengths_[static_cast<std::size_t>(rank)]; }
  /// The first rank with the most tokens.
  int longest_rank() const { return static_cast<int>(std::ranges::max_element(lengths_) - lengths_.begin()); }
  std::span<const PositionRange> ranges(int rank) const { return ranges_[static_cast<std::size_t>(rank)]; }
  /// The tokens of `count` consecutive ranks, one rank after the other.
  std::vector<TokenRun> runs(int first_rank, int count) const;
  /// The positions of the tokens of runs().
  std::vector<std::int64_t> positions(int first_rank, int count) const;
  friend bool operator==(const SequenceParts&, const SequenceParts&) = default;

 private:
  std::vector<std::vector<PositionRange>> ranges_;
  std::vector<std::int64_t> lengths_;
  std::int64_t length_ = 0;
};

}  // namespace droptest::models
