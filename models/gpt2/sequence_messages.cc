// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/sequence_messages.h"

#include <utility>

#include "models/attention/dilated_plan.h"

namespace droptest::models {
namespace {

class MessageList {
 public:
  void add(int source, int destination, std::int64_t elems, int times = 1) {
    for (int i = 0; i < times && source != destination && elems > 0; ++i) {
      messages.push_back({source, destination, static_cast<std::uint64_t>(elems)});
    }
  }
  std::vector<SequenceMessage> messages;
};

/// Forward, queries, keys and values go to the ranks of the heads and the output comes back; backward the gradients of
/// the output go, and those of the three come back.
void add_exchanges(const SequenceFactors& factors, const SequenceParts& parts, const AttentionShape& s,
                   PassDirection direction, MessageList& list) {
  const std::vector<std::uint64_t> heads = comm::even_counts(static_cast<std::uint64_t>(s.heads), factors.ulysses);
  const bool is_forward = direction == PassDirection::kForward;
  for (int source = 0; source < parts.ranks(); ++source) {
    const int first = source / factors.ulysses * factors.ulysses;
    for (int destination = first; destination < first + factors.ulysses; ++destination) {
      const auto elems = [&](int of_tokens, int of_heads) {
        return s.batch * parts.length_of(of_tokens) * s.head_width *
               static_cast<std::int64_t>(heads[static_cast<std::size_t>(of_heads - first)]);
      };
      list.add(source, destination, elems(source, destination), is_forward ? 3 : 1);
      list.add(source, destination, elems(destination, source), is_forward ? 1 : 3);
    }
  }
}

/// Keys and values of a part go on until all ranks have met them. Backward, the gradients with respect to them follow
/// one hop behind, and go home.
void add_hops(const SequenceFactors& factors, const SequenceParts& parts, const AttentionShape& s,
              PassDirection direction, MessageList& list) {
  const std::vector<std::uint64_t> heads = comm::even_counts(static_cast<std::uint64_t>(s.heads), factors.ulysses);
  for (int u = 0; u < factors.ulysses; ++u) {
    for (int part = 0; part < factors.ring; ++part) {
      std::int64_t tokens = 0;
      for (int r = 0; r < factors.ulysses; ++r) tokens += parts.length_of(part * factors.ulysses + r);
      const std::int64_t elems =
          s.batch * tokens * s.head_width * static_cast<std::int64_t>(heads[static_cast<std::size_t>(u)]);
      const auto rank = [&](int hops) { return (part + hops) % factors.ring * factors.ulysses + u; };
      for (int hop = 1; hop < factors.ring; ++hop) {
        list.add(rank(hop - 1), rank(hop), elems, 2);
        if (direction == PassDirection::kBackward) list.add(rank(hop), rank(hop + 1), elems, 2);
      }
    }
  }
}

/// Keys and values of each branch, and backward their gradients the other way.
void add_branches(const AttentionOptions& options, const SequenceParts& parts, const AttentionShape& s,
                  std::int64_t first_head, PassDirection direction, MessageList& list) {
  for (const DilatedBranch& branch : options.branches) {
    for (int source = 0; source < parts.ranks(); ++source) {
      const DilatedPlan plan = dilated_plan(branch, parts, source, first_head, s.heads, Causality::kCausal);
      for (int destination = 0; destination < parts.ranks(); ++destination) {
        const std::int64_t elems =
            DilatedPlan::tokens(plan.sent[static_cast<std::size_t>(destination)]) * s.batch * s.head_width;
        const bool is_forward = direction == PassDirection::kForward;
        list.add(is_forward ? source : destination, is_forward ? destination : source, elems, 2);
      }
    }
  }
}

}  // namespace

std::vector<SequenceMessage> sequence_messages(const AttentionOptions& options, const AttentionShape& whole,
                                               std::int64_t first_head, PassDirection direction) {
  MessageList list;
  const SequenceParts parts = options.sequence.parts(whole.length);
  if (parts.ranks() == 1) return {};
  if (!options.branches.empty()) {
    add_branches(options, parts, whole, first_head, direction, list);
  } else {
    add_exchanges(options.sequence.factors, parts, whole, direction, list);
    add_hops(options.sequence.factors, parts, whole, direction, list);
  }
  return std::move(list.messages);
}

}  // namespace droptest::models
