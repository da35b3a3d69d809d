// SPDX-License-Identifier: Apache-2.0
// Sequences for attention over several ranks, with the dense result.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/attention/sequence_attention.h"
#include "tests/models/attention/dense_attention.h"
#include "tests/models/dropout_draws.h"

namespace droptest::models {

constexpr std::chrono::milliseconds kTimeout{60000};
constexpr std::int64_t kWidth = 2;

inline std::vector<SequenceFactors> factors_of(int ranks) {
  std::vector<SequenceFactors> all;
  for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
    if (ranks % ulysses == 0) all.push_back({ulysses, ranks / ulysses});
  }
  return all;
}

inline std::string text(const SequenceFactors& factors) {
  return "ulysses " + std::to_string(factors.ulysses) + " x ring " + std::to_string(factors.ring);
}

/// A sequence with its masks and the dense result.
struct Whole {
  HeadShape shape;
  TestMask mask;
  DropoutMask dropout;
  WholeTensor q, k, v, dout;
  DenseAttention dense;
  Whole(const HeadShape& s, std::vector<MaskKind> kinds, std::uint64_t seed = 1, double p_dropout = 0)
      : shape(s),
        mask(std::move(kinds), s.batch, s.tokens, seed),
        dropout(dropout_of_keys(p_dropout)),
        q(s, 10 * seed + 1),
        k(s, 10 * seed + 2),
        v(s, 10 * seed + 3),
        dout(s, 10 * seed + 4),
        dense(dense_attention(q, k, v, mask.score_bias(), dout, {}, std::bind_front(factor_of_key, dropout))) {}
};

template <class T>
struct LocalResults {
  std::vector<T> output, grad_queries, grad_keys, grad_values;
};

/// This rank's part of a forward and a backward pass.
template <class T>
LocalResults<T> run_part(SequenceAttention<T>& attention, const SequenceParts& parts, int rank, const Whole& whole,
                         const AttentionMask& mask, TokenLayout layout) {
  const std::vector<std::int64_t> positions = parts.positions(rank, 1);
  HeadShape local = whole.shape;
  local.tokens = parts.length_of(rank);
  const auto part = [&](const WholeTensor& tensor) { return tensor.part<T>(positions, 0, local.heads, layout); };
  const auto view = [&](const std::vector<T>& elems) {
    return view_of("tensor", std::span<const T>(elems), local, layout);
  };
  LocalResults<T> results;
  const auto room = [&](std::vector<T>& elems) {
    elems.assign(local.elems(), std::numeric_limits<T>::quiet_NaN());
    return view_of("result", std::span(elems), local, layout);
  };
  const std::vector<T> q = part(whole.q);
  const std::vector<T> k = part(whole.k);
  const std::vector<T> v = part(whole.v);
  const std::vector<T> dout = part(whole.dout);
  const SequencePass pass{parts, mask, 3, whole.dropout};
  SavedAttention<T> saved;
  attention.forward(pass, view(q), view(k), view(v), room(results.output), saved, 1);
  attention.backward(pass, view(dout), saved,
                     {room(results.grad_queries), room(results.grad_keys), room(results.grad_values)}, 1);
  return results;
}

template <class T>
double error_of(const LocalResults<T>& got, const DenseAttention& want, const std::vector<std::int64_t>& positions,
                TokenLayout layout) {
  const auto difference = [&](const std::vector<T>& elems, const WholeTensor& whole) {
    return largest_difference(Doubles(elems.begin(), elems.end()),
                              whole.part<double>(positions, 0, whole.shape.heads, layout));
  };
  return std::max({difference(got.output, want.output), difference(got.grad_queries, want.grad_queries),
                   difference(got.grad_keys, want.grad_keys), difference(got.grad_values, want.grad_values)});
}

/// Parts of each kind: even, zigzag, all tokens except one on the last rank, and the last rank without a token.
inline std::vector<SequenceParts> parts_of(std::int64_t length, const SequenceFactors& factors) {
  const int ranks = factors.ulysses * factors.ring;
  std::vector<SequenceParts> all = {SequenceParts::even(length, ranks),
                                    SequenceParts::zigzag(length, factors.ring, factors.ulysses)};
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(ranks), 0);
  lengths.front() = std::min<std::int64_t>(length, 1);
  lengths.back() += length - lengths.front();
  all.push_back(SequenceParts::contiguous(lengths));
  std::ranges::reverse(lengths);
  lengths.back() = 0;
  lengths.front() = length;
  if (ranks > 2) std::swap(lengths[0], lengths[1]);
  all.push_back(SequenceParts::contiguous(lengths));
  return all;
}

}  // namespace droptest::models
