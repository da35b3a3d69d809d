// SPDX-License-Identifier: Apache-2.0
// Which tokens of which heads meet in dilated attention, and which of them travel between ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/attention/sequence_parts.h"
#include "models/attention/token_attention.h"

namespace droptest::models {

/// Token t is in segment t / segment_length. Head j attends, within a segment, from and to the tokens of which the
/// distance to the segment's first token is j mod dilation, modulo dilation. Source: Ding et al. 2023 (LongNet).
struct DilatedBranch {
  std::int64_t segment_length = 0;
  std::int64_t dilation = 1;
};

/// Throws: ConfigError that names the branch and the member that does not fit: no branch, a length or dilation below 1,
/// or a dilation above the segment's length, where some heads would see nothing.
void validate(const std::vector<DilatedBranch>& branches);

/// Times that a query of a head (a number over all ranks) sees a key, over all branches, before any mask.
std::int64_t dilated_visits(const std::vector<DilatedBranch>& branches, std::int64_t head, std::int64_t query,
                            std::int64_t key);

/// A branch on one rank. Tokens of a rank that share a segment with those of another rank go to it: for each head those
/// of its residue alone.
struct DilatedPlan {
  AttentionPattern local;     ///< by head, among the rank's own tokens
  AttentionPattern gathered;  ///< by head, from the rank's tokens to those received
  /// The tokens that this rank sends: by destination and head.
  std::vector<std::vector<TokenRun>> sent;
  /// By source and head: the tokens received, as a range of the gathered ones of this head.
  std::vector<std::vector<TokenRun>> received;
  std::int64_t gathered_tokens = 0;  ///< the most of any head

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

/// Throws: ConfigError for parts of another number of ranks.
void check_dilated_ranks(const SequenceParts& parts, int ranks);

/// Under a causal mask tokens go to later ranks only. `first_head` is the number of the first of `heads` over all
/// ranks. Throws: ConfigError where a rank's tokens are not one range, or ranks are not in the order of their tokens.
DilatedPlan dilated_plan(const DilatedBranch& branch, const SequenceParts& parts, int rank, std::int64_t first_head,
                         std::int64_t heads, Causality causality);

}  // namespace droptest::models
