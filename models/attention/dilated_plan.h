// SPDX-License-Identifier: Apache-2.0
// Which keys each query attends to in dilated attention, and which tokens are sent between ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/attention/sequence_parts.h"
#include "models/attention/token_attention.h"

namespace droptest::models {

/// Token t is in segment t / segment_length. Within a segment, head j attends only from and to the tokens at the
/// distances j mod dilation + i dilation from the segment's first token, i = 0, 1, ... Source: Ding et al. 2023
/// (LongNet).
struct DilatedBranch {
  std::int64_t segment_length = 0;
  std::int64_t dilation = 1;

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("segment", segment_length);
    visit("dilation", dilation);
  }
};

/// Throws: ConfigError that names the branch and the member that does not fit: no branch, a length or dilation below 1,
/// or a dilation above the segment's length, with which some heads would see nothing.
void validate(const std::vector<DilatedBranch>& branches);

/// The number of branches in which a query of a head (numbered over all ranks) sees a key, before any mask.
std::int64_t dilated_visits(const std::vector<DilatedBranch>& branches, std::int64_t head, std::int64_t query,
                            std::int64_t key);

/// A branch on one rank. If two ranks share a segment, each sends its tokens of the segment to the other, for each head
/// only the tokens that the head attends to.
struct DilatedPlan {
  AttentionPattern local;     ///< attention among the rank's own tokens
  AttentionPattern gathered;  ///< attention from the rank's tokens to the received ones
  /// The tokens that this rank sends, [destination][head].
  std::vector<std::vector<TokenRun>> sent;
  /// The tokens that this rank receives, [source][head], as ranges of the head's gathered tokens.
  std::vector<std::vector<TokenRun>> received;
  std::int64_t gathered_tokens = 0;  ///< the largest number over the heads

  /// The number of tokens of all heads in one entry of `sent` or `received`.
  static std::int64_t tokens(const std::vector<TokenRun>& by_head);
};

/// Calls f(token, head) for the heads of tokens that travel between two ranks, in their order.
template <class F>
void for_travelling_heads(const std::vector<TokenRun>& by_head, const F& f) {
  for (std::size_t head = 0; head < by_head.size(); ++head) {
    const TokenRun& run = by_head[head];
    for (std::int64_t i = 0; i < run.count; ++i) f(run.index + i * run.index_step, static_cast<std::int64_t>(head));
  }
}

/// The name of the message of a branch's "keys", "values", "keys.grad" or "values.grad".
std::string dilated_message(std::size_t branch, const char* tensor);

/// Throws: ConfigError unless the parts are those of `ranks` ranks.
void check_dilated_ranks(const SequenceParts& parts, int ranks);

/// The plan of a branch for rank `rank`. With a causal mask, tokens are only sent to later ranks. This rank has `heads`
/// heads; `first_head` is the number of the first one among the heads of all tensor-parallel ranks. Throws: ConfigError
/// if a rank's tokens are not one range, or if the ranks are not in the order of their tokens.
DilatedPlan dilated_plan(const DilatedBranch& branch, const SequenceParts& parts, int rank, std::int64_t first_head,
                         std::int64_t heads, Causality causality);

}  // namespace droptest::models
