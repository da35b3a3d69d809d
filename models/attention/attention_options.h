// SPDX-License-Identifier: Apache-2.0
// The options of a GPT-2's attention, among them how ranks share the tokens of a sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "models/attention/dilated_attention.h"
#include "models/attention/sequence_parts.h"

namespace droptest::models {

/// How the tokens of a sequence are distributed over the ranks of a sequence group, and exchanged.
struct SequenceLayout {
  SequenceFactors factors{};
  /// kConsecutive: each rank has consecutive tokens. kZigzag: each rank of a ring has two chunks, which balances the
  /// work of a causal mask.
  enum class Order : std::uint8_t { kConsecutive, kZigzag } order = Order::kConsecutive;

  int ranks() const { return factors.ulysses * factors.ring; }
  SequenceParts parts(std::int64_t length) const;
};

/// The options of causal attention.
struct AttentionOptions {
  SequenceLayout sequence{};
  /// The branches of dilated attention; empty: dense attention.
  std::vector<DilatedBranch> branches{};
  BranchGradient gradient = BranchGradient::kExact;
  /// Whether batches say which document each token belongs to.
  enum class Within : std::uint8_t { kSequence, kDocument } within = Within::kSequence;
  /// Whether an evaluation continues the sequence of the previous one with cached keys and values (cached_attention.h).
  enum class Past : std::uint8_t { kForgotten, kCached } past = Past::kForgotten;

  /// The chunk length with which queries, keys and values are stored outside of memory until the backward pass; 0: they
  /// stay in memory. The backward pass of dense attention on one rank has a few chunks in memory at a time. Dilated
  /// attention, and attention over sequence ranks, bring all chunks of a block back at once.
  std::int64_t chunk_tokens = 0;

  /// The members of dilated attention by their names in a spec.
  void visit_members(const auto& visit) {
    visit("branches", branches);
    visit("gradient", gradient, {{"exact", BranchGradient::kExact}, {"stopped", BranchGradient::kStopped}});
  }

  /// Whether this is dense attention on a rank that has all tokens.
  bool is_whole() const { return sequence.ranks() == 1 && branches.empty(); }
  /// Whether attention is a StatefulAttention.
  bool is_stateful() const {
    return sequence.ranks() > 1 || !branches.empty() || within == Within::kDocument || chunk_tokens > 0 ||
           past == Past::kCached;
  }
};

/// Checks the options for a tensor-parallel rank with `heads` heads. Throws: ConfigError for these values:
/// | option           | refused value                                                                     |
/// | sequence.factors | a factor below 1, or more Ulysses ranks than heads                                |
/// | branches         | invalid branches, or branches over ranks that are not a ring of consecutive parts |
/// | past             | kCached with sequence ranks, branches, documents or chunks                        |
/// | chunk_tokens     | a negative number                                                                 |
void validate(const AttentionOptions& options, int heads);

}  // namespace droptest::models
