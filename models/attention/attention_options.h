// SPDX-License-Identifier: Apache-2.0
// What a GPT-2's attention is, and how ranks share the tokens of its sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "models/attention/dilated_attention.h"
#include "models/attention/sequence_parts.h"

namespace droptest::models {

/// How the ranks of a sequence group have the tokens, and exchange them.
struct SequenceLayout {
  SequenceFactors factors{};
  /// Consecutive parts, or two chunks on each rank of a ring so that all have equally much work under a causal mask.
  enum class Order : std::uint8_t { kConsecutive, kZigzag } order = Order::kConsecutive;

  int ranks() const { return factors.ulysses * factors.ring; }
  SequenceParts parts(std::int64_t length) const;
};

/// Causal attention.
struct AttentionOptions {
  SequenceLayout sequence{};
  /// Of dilated attention; empty: dense.
  std::vector<DilatedBranch> branches{};
  BranchGradient gradient = BranchGradient::kExact;
  /// Whether batches say which document each token belongs to.
  enum class Within : std::uint8_t { kSequence, kDocument } within = Within::kSequence;
  /// Whether evaluations go on behind the tokens of the one before, with its keys and values (cached_attention.h).
  enum class Past : std::uint8_t { kForgotten, kCached } past = Past::kForgotten;

  /// Of the chunks in which queries, keys and values wait outside of memory for the backward pass; 0: they are saved in
  /// memory. The backward pass of one rank's dense attention has some chunks in memory at a time; that over sequence
  /// ranks, and that of dilated attention, all of a block.
  std::int64_t chunk_tokens = 0;

  /// Whether it is dense attention of a rank that has all tokens.
  bool is_whole() const { return sequence.ranks() == 1 && branches.empty(); }
  /// Whether attention is StatefulAttention.
  bool is_stateful() const {
    return sequence.ranks() > 1 || !branches.empty() || within == Within::kDocument || chunk_tokens > 0 ||
           past == Past::kCached;
  }
};

/// Throws: ConfigError for cached keys and values with any other attention than that of one rank over whole sequences;
/// factors below 1, fewer `heads` of a tensor-parallel rank than Ulysses ranks, dilated attention over ranks that are
/// not a ring of consecutive parts or with branches that do not fit, and chunks of fewer than 0 tokens.
void validate(const AttentionOptions& options, int heads);

}  // namespace droptest::models
