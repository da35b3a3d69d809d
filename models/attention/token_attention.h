// SPDX-License-Identifier: Apache-2.0
// Attention between any tokens of a sequence, one block of keys at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/attention/attention_mask.h"
#include "models/attention/head_view.h"
#include "models/kernels/dropout.h"
#include "models/team.h"

namespace droptest::models {

/// Tokens at equal distances. For i = 0, ..., count - 1, the view's token number index + i x index_step is at the
/// position `position` + i x position_step of the whole sequence. Steps are positive.
struct TokenRun {
  std::int64_t index = 0;
  std::int64_t count = 0;
  std::int64_t position = 0;
  std::int64_t index_step = 1;
  std::int64_t position_step = 1;

  /// The positions of the run's tokens from number `from` on.
  PositionSteps positions(std::int64_t from) const { return {position + from * position_step, position_step}; }
};

/// One head of a token, in all sequences of a batch.
struct TokenHead {
  std::int64_t token = 0;
  std::int64_t head = 0;
};

/// Queries and the keys that they attend to, as far as the mask allows.
struct AttentionBlock {
  std::vector<TokenRun> queries;
  std::vector<TokenRun> keys;
};
/// The blocks of each head; a single entry means that all heads have the same blocks. Within a head, no query is in two
/// blocks.
using AttentionPattern = std::vector<std::vector<AttentionBlock>>;

/// The pattern in which all tokens of `queries` attend to all tokens of `keys`.
AttentionPattern pattern_of(std::vector<TokenRun> queries, std::vector<TokenRun> keys);

/// The inputs of attend() and attend_backward(), borrowed. Shapes: queries, keys and values agree in batch, heads and
/// width.
template <class T>
struct AttentionInputs {
  HeadView<const T> queries;
  HeadView<const T> keys;
  HeadView<const T> values;
  const AttentionMask& mask;
  /// Flags of absent keys, [tokens of keys, batch, heads]: a key with a flag other than 0 leaves the softmax with its
  /// value. Empty: no key is absent.
  std::span<const std::uint8_t> absent = {};
  /// Dropout of the probabilities. A draw depends on the sequence, the head, and the positions of the query and the
  /// key, so a key that is seen twice has the same draw. `first_head` is the number of the views' first head,
  /// `first_position` that of position 0.
  DropoutMask dropout{};
};

/// The size of the scratch of attend() and attend_backward(), in elements.
std::uint64_t token_attention_scratch_elems(std::int64_t width, int threads);

/// Sets output to 0 and log_sum_exp [batch, heads, queries] to minus infinity, the values of queries that have seen no
/// key.
template <class T>
void begin_attention(const HeadView<T>& output, std::span<T> log_sum_exp);

/// Continues an attention with more keys: output and log_sum_exp become those of the softmax over the keys seen so far
/// and the keys of the pattern. A key that is seen twice counts twice. Scores are scaled by 1 / sqrt(width), and only
/// those of 64 queries and 256 keys are in memory at a time for each thread. Source: Rabe and Staats 2021; Dao et al.
/// 2022 (FlashAttention). Dropout acts on the probabilities after the softmax, so log_sum_exp is the one without
/// dropout. Throws: CheckError if the shapes, the pattern and the flags do not fit together.
/// Determinism: bits depend on shapes and values, not on the team.
template <class T>
void attend(const AttentionInputs<T>& inputs, const AttentionPattern& pattern, const HeadView<T>& output,
            std::span<T> log_sum_exp, std::span<T> scratch, const Team& team);

/// The results of a whole attention, and the gradients of the loss with respect to them. An empty grad_log_sum_exp
/// means zeros.
template <class T>
struct AttentionResults {
  HeadView<const T> output;
  std::span<const T> log_sum_exp;
  HeadView<const T> grad_output;
  std::span<const T> grad_log_sum_exp = {};
};
/// The gradients of the loss with respect to the inputs.
template <class T>
struct AttentionGradients {
  HeadView<T> queries;
  HeadView<T> keys;
  HeadView<T> values;
};

/// Adds the gradients that come from the keys of this pattern. `results` are those after the last attend(): with them,
/// the gradients of several patterns add up to those of the whole softmax. `inputs` have the dropout of attend().
template <class T>
void attend_backward(const AttentionInputs<T>& inputs, const AttentionPattern& pattern,
                     const AttentionResults<T>& results, const AttentionGradients<T>& gradients, std::span<T> scratch,
                     const Team& team);

/// Merges the attention of the same queries over other keys, computed elsewhere, into output and log_sum_exp. The two
/// log-sum-exps may differ by any amount, and both may be minus infinity. Throws: CheckError for different shapes.
template <class T>
void merge_attention(const HeadView<const T>& other_output, std::span<const T> other_log_sum_exp,
                     const HeadView<T>& output, std::span<T> log_sum_exp);

}  // namespace droptest::models
