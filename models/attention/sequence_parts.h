// SPDX-License-Identifier: Apache-2.0
// Who has which tokens of a sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "models/attention/token_attention.h"

namespace droptest::models {

/// Positions begin, begin + 1, ... of a sequence.
struct PositionRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  friend bool operator==(const PositionRange&, const PositionRange&) = default;
};

/// The positions of each rank of a sequence group, in the order in which the rank has the tokens: every position of the
/// sequence on one rank. Ranks may have no token. All ranks have the same table, so that no call needs to exchange
/// lengths.
class SequenceParts {
 public:
  /// By rank. Throws: ConfigError that names the position that no rank or two ranks have.
  explicit SequenceParts(std::vector<std::vector<PositionRange>> ranks);
  /// Consecutive parts of these lengths. Throws: ConfigError that names the rank for a negative one.
  static SequenceParts contiguous(std::span<const std::int64_t> lengths);
  /// Consecutive parts; the first length % ranks parts have one token more.
  static SequenceParts even(std::int64_t length, int ranks);
  /// Of 2 x `ring` chunks, as even as possible, part r has the chunks r and 2 ring - 1 - r: under a causal mask all
  /// parts have equally much work. Each part is cut evenly into the parts of `ulysses` neighbouring ranks. Source: Zhu,
  /// ring-flash-attention (zigzag).
  static SequenceParts zigzag(std::int64_t length, int ring, int ulysses = 1);
  /// Consecutive parts with the length that each rank gives: the one exchange, in class control, after which calls need
  /// none until a length changes. Ranks: all.
  static SequenceParts agreed(std::int64_t length, comm::Communicator& group);

  int ranks() const { return static_cast<int>(ranges_.size()); }
  std::int64_t length() const { return length_; }
  /// By rank.
  std::span<const std::int64_t> lengths() const { return lengths_; }
  std::int64_t length_of(int rank) const { return lengths_[static_cast<std::size_t>(rank)]; }
  /// The first rank with the most tokens.
  int longest_rank() const { return static_cast<int>(std::ranges::max_element(lengths_) - lengths_.begin()); }
  std::span<const PositionRange> ranges(int rank) const { return ranges_[static_cast<std::size_t>(rank)]; }
  /// The tokens of consecutive ranks, one rank's after the other's.
  std::vector<TokenRun> runs(int first_rank, int count) const;
  /// The positions of these tokens.
  std::vector<std::int64_t> positions(int first_rank, int count) const;
  friend bool operator==(const SequenceParts&, const SequenceParts&) = default;

 private:
  std::vector<std::vector<PositionRange>> ranges_;
  std::vector<std::int64_t> lengths_;
  std::int64_t length_ = 0;
};

}  // namespace droptest::models
