// SPDX-License-Identifier: Apache-2.0
// Attention over the tokens of several ranks: Ulysses, a ring, and every factorisation of the two.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "models/sequence/attention_ring.h"
#include "models/sequence/head_exchange.h"
#include "models/sequence/sequence_factors.h"
#include "models/sequence/sequence_parts.h"

namespace droptest::models {

/// The inputs that all ranks of a call have in common. Borrowed; backward gets what forward got.
struct SequencePass {
  const SequenceParts& parts;
  const AttentionMask& mask;
  int layer = -1;
  /// Of the probabilities. Its first head is the group's first one, and its first position that of the parts' position
  /// 0: the masks are those of one rank.
  DropoutMask dropout{};
};

/// The saved activations of a forward pass: this rank's heads of the tokens of its Ulysses group, each
/// [tokens, batch, heads, width].
template <class T>
struct SavedAttention {
  std::vector<T> queries;
  std::vector<T> keys;
  std::vector<T> values;
  std::vector<T> output;
  std::vector<T> log_sum_exp;  ///< [batch, heads, tokens]
  Absences absent;             ///< of keys; empty: all are there
  AttentionLosses lost;
  RingLosses<T> losses;
};

/// Elements that a rank sends to other ranks in a pass.
struct SequenceTraffic {
  std::uint64_t forward_elems = 0;
  std::uint64_t backward_elems = 0;
};

/// Throws: ConfigError that names the tensor and the axis, unless `got` are the tokens of a rank with all heads and the
/// batch and width of `like`, and ConfigError for parts of another number of ranks.
void check_rank_shape(const SequenceParts& parts, const SequenceFactors& factors, int rank, std::int64_t heads,
                      std::string_view tensor, const HeadShape& got, const HeadShape& like);

/// Attention of a sequence group. Under the fill `absent` of class sequence_forward, a (token, head) of which this rank
/// lost an element of the key or of the value leaves the softmax of this rank's queries, and of those further along the
/// ring; lost elements of queries and outputs are 0. Under other fills they get its values. Under
/// Communicator::stops_lost_gradients() the backward pass is the gradient of the forward pass with its losses;
/// otherwise the gradient of a filled value goes to the lost one. Messages: attention.queries, .keys, .values, .output
/// and the same with .grad of class sequence_forward and sequence_backward; on a ring with .hop1, ... Owner: one rank.
/// Ranks: all make the same calls. Determinism: as the communicator; sums over the parts of a ring begin with a rank's
/// own part.
template <class T>
class SequenceAttention {
 public:
  /// The group is borrowed; null: one rank. Ranks: all of the group, which it splits. Throws: ConfigError where the
  /// factors do not give the number of ranks, and for fewer heads than Ulysses ranks.
  SequenceAttention(comm::Communicator* group, const SequenceFactors& factors, std::int64_t heads);

  /// Queries, keys, values and the output have this rank's tokens with all heads. Throws: ConfigError that names the
  /// tensor and the axis for other shapes.
  void forward(const SequencePass& pass, const HeadView<const T>& queries, const HeadView<const T>& keys,
               const HeadView<const T>& values, const HeadView<T>& output, SavedAttention<T>& saved, const Team& team);

  /// Sets the gradients of this rank's tokens.
  void backward(const SequencePass& pass, const HeadView<const T>& grad_output, const SavedAttention<T>& saved,
                const AttentionGradients<T>& gradients, const Team& team);

  /// This rank's share of a pass over so many sequences. Without flags.
  SequenceTraffic traffic(const SequenceParts& parts, std::int64_t batch, std::int64_t width) const;
  /// Elements of SavedAttention but for flags and losses.
  std::uint64_t saved_elems(const SequenceParts& parts, std::int64_t batch, std::int64_t width) const;
  /// Pairs of a query and a key that this rank computes for one sequence.
  std::int64_t pairs(const SequenceParts& parts, Causality causality) const;

 private:
  /// The tokens of this rank's Ulysses group.
  HeadShape gathered(const SequenceParts& parts, std::int64_t batch, std::int64_t width) const;
  std::span<const std::int64_t> group_lengths(const SequenceParts& parts) const;
  std::vector<std::vector<TokenRun>> ring_parts(const SequenceParts& parts) const;
  /// With this rank's first head.
  DropoutMask dropout_of(const SequencePass& pass) const;
  void check(const SequencePass& pass, std::string_view tensor, const HeadShape& got, const HeadShape& like) const {
    check_rank_shape(pass.parts, factors_, rank_, heads_, tensor, got, like);
  }

  int rank_;
  SequenceFactors factors_;
  std::int64_t heads_;
  std::vector<std::unique_ptr<comm::Communicator>> owned_;
  HeadExchange<T> exchange_;
  AttentionRing<T> ring_;
  std::vector<T> grad_output_;
  std::vector<T> grad_queries_;
  std::vector<T> grad_keys_;
  std::vector<T> grad_values_;
};

}  // namespace droptest::models
