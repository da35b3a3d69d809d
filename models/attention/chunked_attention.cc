// SPDX-License-Identifier: Apache-2.0
#include "models/attention/chunked_attention.h"

#include <algorithm>
#include <string>

#include "models/kernels/chunks.h"
#include "sim/error.h"

namespace droptest::models {

std::vector<TokenRun> cut_runs(const std::vector<TokenRun>& runs, std::int64_t first, std::int64_t count) {
  std::vector<TokenRun> cut;
  std::int64_t begin = 0;
  for (const TokenRun& run : runs) {
    const std::int64_t from = std::max(first, begin);
    const std::int64_t to = std::min(first + count, begin + run.count);
    if (from < to) {
      cut.push_back({from - first, to - from, run.position + (from - begin) * run.position_step, 1, run.position_step});
    }
    begin += run.count;
  }
  return cut;
}

template <class T>
ChunkedAttention<T>::ChunkedAttention(const HeadShape& shape, std::vector<TokenRun> tokens, std::int64_t chunk_tokens,
                                      OffloadFile& file, std::uint64_t first_key)
    : shape_(shape), chunk_tokens_(chunk_tokens), file_(file), first_key_(first_key) {
  if (chunk_tokens < 1) {
    throw ConfigError("chunked attention: got chunks of " + std::to_string(chunk_tokens) + " tokens, want at least 1");
  }
  std::int64_t listed = 0;
  for (const TokenRun& run : tokens) listed += run.count;
  DROPTEST_CHECK(listed == shape.tokens, "positions of other tokens");
  for (std::int64_t first = 0; first < shape.tokens; first += chunk_tokens) {
    runs_.push_back(cut_runs(tokens, first, std::min(chunk_tokens, shape.tokens - first)));
  }
  is_put_.resize(runs_.size());
  has_gradients_.resize(runs_.size());
}

template <class T>
HeadShape ChunkedAttention<T>::chunk_shape(int chunk) const {
  HeadShape shape = shape_;
  shape.tokens = std::min(chunk_tokens_, shape_.tokens - chunk * chunk_tokens_);
  return shape;
}

template <class T>
std::uint64_t ChunkedAttention<T>::resident_bytes(std::int64_t tensors, int threads) const {
  HeadShape chunk = shape_;
  chunk.tokens = std::min(chunk_tokens_, shape_.tokens);
  return sizeof(T) *
         (static_cast<std::uint64_t>(tensors) * chunk.elems() + token_attention_scratch_elems(shape_.width, threads));
}

template <class T>
std::vector<int> ChunkedAttention<T>::seen_chunks(int chunk, const AttentionMask& mask) const {
  std::int64_t last = -1;
  for (const TokenRun& run : runs_[static_cast<std::size_t>(chunk)]) {
    last = std::max(last, run.positions(run.count - 1).first);
  }
  std::vector<int> seen;
  for (int other = 0; other < chunks(); ++other) {
    const auto sees = [&](const TokenRun& run) { return mask.visible(last, run.positions(0), run.count) > 0; };
    if (!std::ranges::any_of(runs_[static_cast<std::size_t>(other)], sees)) continue;
    DROPTEST_CHECK(
        is_put_[static_cast<std::size_t>(other)],
        "queries of chunk " + std::to_string(chunk) + " see chunk " + std::to_string(other) + ", which was not put");
    seen.push_back(other);
  }
  return seen;
}

template <class T>
void ChunkedAttention<T>::put(int chunk, Kind kind, const std::vector<T>& elems) {
  file_.put(key(chunk, kind), std::as_bytes(std::span(elems)));
}

template <class T>
HeadView<T> ChunkedAttention<T>::take(int chunk, Kind kind, std::vector<T>& to) {
  const HeadShape shape = chunk_shape(chunk);
  to.resize(shape.elems());
  const bool is_there = kind == Kind::kKeys || kind == Kind::kValues || has_gradients_[static_cast<std::size_t>(chunk)];
  if (is_there) {
    file_.take(key(chunk, kind), std::as_writable_bytes(std::span(to)));
  } else {
    std::ranges::fill(to, T(0));
  }
  return view_of("chunk", std::span(to), shape, TokenLayout::kSequenceFirst);
}

template <class T>
void ChunkedAttention<T>::expect(int chunk, bool with_gradients) {
  file_.expect(key(chunk, Kind::kKeys));
  file_.expect(key(chunk, Kind::kValues));
  if (!with_gradients || !has_gradients_[static_cast<std::size_t>(chunk)]) return;
  file_.expect(key(chunk, Kind::kKeyGradients));
  file_.expect(key(chunk, Kind::kValueGradients));
}

template <class T>
std::span<T> ChunkedAttention<T>::scratch(const Team& team) {
  scratch_.resize(token_attention_scratch_elems(shape_.width, team.threads()));
  return scratch_;
}

template <class T>
void ChunkedAttention<T>::put(int chunk, const HeadView<const T>& keys, const HeadView<const T>& values) {
  const HeadShape shape = chunk_shape(chunk);
  check_shape("keys", keys.shape, shape, TokenLayout::kBatchFirst);
  check_shape("values", values.shape, shape, TokenLayout::kBatchFirst);
  for (const auto& [kind, from] : {std::pair(Kind::kKeys, keys), std::pair(Kind::kValues, values)}) {
    keys_.resize(shape.elems());
    copy_heads(from, view_of("chunk", std::span(keys_), shape, TokenLayout::kSequenceFirst));
    put(chunk, kind, keys_);
  }
  is_put_[static_cast<std::size_t>(chunk)] = true;
}

template <class T>
void ChunkedAttention<T>::forward(int chunk, const HeadView<const T>& queries, const AttentionMask& mask,
                                  const HeadView<T>& output, std::span<T> log_sum_exp, const Team& team,
                                  const DropoutMask& dropout) {
  check_shape("queries", queries.shape, chunk_shape(chunk), TokenLayout::kBatchFirst);
  check_shape("output", output.shape, chunk_shape(chunk), TokenLayout::kBatchFirst);
  const std::span<T> room = scratch(team);
  begin_attention(output, log_sum_exp);
  const std::vector<int> seen = seen_chunks(chunk, mask);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const HeadView<T> keys = take(seen[i], Kind::kKeys, keys_);
    const HeadView<T> values = take(seen[i], Kind::kValues, values_);
    if (i + 1 < seen.size()) expect(seen[i + 1], false);
    attend(AttentionInputs<T>{queries, keys, values, mask, {}, dropout},
           pattern_of(runs_[static_cast<std::size_t>(chunk)], runs_[static_cast<std::size_t>(seen[i])]), output,
           log_sum_exp, room, team);
  }
}

template <class T>
void ChunkedAttention<T>::backward(int chunk, const HeadView<const T>& queries, const AttentionMask& mask,
                                   const AttentionResults<T>& results, const HeadView<T>& grad_queries,
                                   const Team& team, const DropoutMask& dropout) {
  const HeadShape shape = chunk_shape(chunk);
  check_shape("queries", queries.shape, shape, TokenLayout::kBatchFirst);
  check_shape("gradient of queries", grad_queries.shape, shape, TokenLayout::kBatchFirst);
  const std::span<T> room = scratch(team);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      for (std::int64_t h = 0; h < shape.heads; ++h) std::fill_n(grad_queries.at(b, t, h), shape.width, T(0));
    }
  }
  const std::vector<int> seen = seen_chunks(chunk, mask);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const HeadView<T> keys = take(seen[i], Kind::kKeys, keys_);
    const HeadView<T> values = take(seen[i], Kind::kValues, values_);
    const HeadView<T> grad_keys = take(seen[i], Kind::kKeyGradients, grad_keys_);
    const HeadView<T> grad_values = take(seen[i], Kind::kValueGradients, grad_values_);
    if (i + 1 < seen.size()) expect(seen[i + 1], true);
    attend_backward(AttentionInputs<T>{queries, keys, values, mask, {}, dropout},
                    pattern_of(runs_[static_cast<std::size_t>(chunk)], runs_[static_cast<std::size_t>(seen[i])]),
                    results, {grad_queries, grad_keys, grad_values}, room, team);
    put(seen[i], Kind::kKeyGradients, grad_keys_);
    put(seen[i], Kind::kValueGradients, grad_values_);
    has_gradients_[static_cast<std::size_t>(seen[i])] = true;
  }
}

template <class T>
void ChunkedAttention<T>::take_gradients(int chunk, const HeadView<T>& grad_keys, const HeadView<T>& grad_values) {
  const HeadShape shape = chunk_shape(chunk);
  check_shape("gradient of keys", grad_keys.shape, shape, TokenLayout::kBatchFirst);
  check_shape("gradient of values", grad_values.shape, shape, TokenLayout::kBatchFirst);
  copy_heads<T>(take(chunk, Kind::kKeyGradients, grad_keys_), grad_keys);
  copy_heads<T>(take(chunk, Kind::kValueGradients, grad_values_), grad_values);
  has_gradients_[static_cast<std::size_t>(chunk)] = false;
}

template class ChunkedAttention<float>;
template class ChunkedAttention<double>;

}  // namespace droptest::models
