// SPDX-License-Identifier: Apache-2.0
// Attention between any tokens of a sequence, a block of keys at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/attention/attention_mask.h"
#include "models/attention/head_view.h"
#include "models/kernels/dropout.h"
#include "models/team.h"

namespace droptest::models {

/// Tokens at equal distances: token `index` + i `index_step` of a view has the position `position` + i `position_step`
/// in the whole sequence. Steps are positive.
struct TokenRun {
  std::int64_t index = 0;
  std::int64_t count = 0;
  std::int64_t position = 0;
  std::int64_t index_step = 1;
  std::int64_t position_step = 1;

  PositionSteps positions(std::int64_t from) const { return {position + from * position_step, position_step}; }
};

/// One head of a token, in all sequences.
struct TokenHead {
  std::int64_t token = 0;
  std::int64_t head = 0;
};

/// Queries that attend to keys, as far as the mask allows.
struct AttentionBlock {
  std::vector<TokenRun> queries;
  std::vector<TokenRun> keys;
};
/// The blocks of each head; one entry: all heads have the same. Within a head, no query is in two blocks.
using AttentionPattern = std::vector<std::vector<AttentionBlock>>;

/// All tokens of `queries` attend to all of `keys`.
AttentionPattern pattern_of(std::vector<TokenRun> queries, std::vector<TokenRun> keys);

/// Borrowed. Shapes: queries, keys and values agree in batch, heads and width.
template <class T>
struct AttentionInputs {
  HeadView<const T> queries;
  HeadView<const T> keys;
  HeadView<const T> values;
  const AttentionMask& mask;
  /// [tokens of keys, batch, heads]: where it is not 0, the key and its value are not there. Empty: all are.
  std::span<const std::uint8_t> absent = {};
  /// Of the probabilities, by the numbers of the sequence, the head, the query's position and the key's position. The
  /// head `first_head` is that of the views' first head, `first_position` that of position 0. A key that is seen twice
  /// has one draw.
  DropoutMask dropout{};
};

/// The scratch of the functions below, in elements.
std::uint64_t token_attention_scratch_elems(std::int64_t width, int threads);

/// Sets output and log_sum_exp [batch, heads, queries] to those of queries that have seen no key: 0 and minus infinity.
template <class T>
void begin_attention(const HeadView<T>& output, std::span<T> log_sum_exp);

/// Continues an attention with more keys: output and log_sum_exp become those of the softmax over the keys seen so far
/// and the keys of the pattern. A key that is seen twice counts twice. Scores are scaled by 1 / sqrt(width). Scores are
/// never in memory as a whole: strips of 64 queries meet 256 keys at a time. Source: Rabe and Staats 2021; Dao et al.
/// 2022 (FlashAttention). Dropout sets probabilities to zero behind the softmax: log_sum_exp is that without dropout.
/// Determinism: bits depend on shapes and values, not on the team.
template <class T>
void attend(const AttentionInputs<T>& inputs, const AttentionPattern& pattern, const HeadView<T>& output,
            std::span<T> log_sum_exp, std::span<T> scratch, const Team& team);

/// The results of a whole attention, and the gradients of the loss with respect to them. Empty grad_log_sum_exp: 0.
template <class T>
struct AttentionResults {
  HeadView<const T> output;
  std::span<const T> log_sum_exp;
  HeadView<const T> grad_output;
  std::span<const T> grad_log_sum_exp = {};
};
template <class T>
struct AttentionGradients {
  HeadView<T> queries;
  HeadView<T> keys;
  HeadView<T> values;
};

/// Adds the gradients that come from the keys of this pattern. `results` are those after the last attend(): with them,
/// the gradients of several calls of attend() add up to the exact ones of the whole softmax. `inputs` have the dropout
/// of attend().
template <class T>
void attend_backward(const AttentionInputs<T>& inputs, const AttentionPattern& pattern,
                     const AttentionResults<T>& results, const AttentionGradients<T>& gradients, std::span<T> scratch,
                     const Team& team);

/// Merges the attention of the same queries over other keys into output and log_sum_exp, for attentions that were
/// computed elsewhere. Exact for any difference of the two log-sum-exps, minus infinity included.
template <class T>
void merge_attention(const HeadView<const T>& other_output, std::span<const T> other_log_sum_exp,
                     const HeadView<T>& output, std::span<T> log_sum_exp);

}  // namespace droptest::models
