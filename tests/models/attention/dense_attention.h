// SPDX-License-Identifier: Apache-2.0
// The simplest implementation of attention: all scores of all queries and keys in double, and masks from their arrays.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/attention/attention_mask.h"
#include "models/attention/head_view.h"

namespace droptest::models {

using Doubles = std::vector<double>;

/// A fraction in [-1/2, 1/2) for each tensor and element.
double formula_number(std::uint64_t tensor, std::uint64_t index);
Doubles formula_numbers(std::uint64_t tensor, std::uint64_t count);

/// A tensor [batch, tokens, heads, width] of the whole sequence.
struct WholeTensor {
  HeadShape shape;
  Doubles elems;
  WholeTensor() = default;
  explicit WholeTensor(const HeadShape& s) : shape(s), elems(s.elems()) {}
  WholeTensor(const HeadShape& s, std::uint64_t tensor) : shape(s), elems(formula_numbers(tensor, s.elems())) {}
  double& at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d);
  double at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) const;
  /// The tokens at these positions, with these heads, in that layout.
  template <class T>
  std::vector<T> part(const std::vector<std::int64_t>& positions, std::int64_t first_head, std::int64_t heads,
                      TokenLayout layout) const;
};

/// A number for (sequence, head, query, key).
using OfPairs = std::function<double(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k)>;
/// An addend of scores; minus infinity forbids attention, log n counts a key n times.
using ScoreBias = OfPairs;

struct DenseAttention {
  WholeTensor output;
  Doubles log_sum_exp;  ///< [batch, heads, queries]
  WholeTensor grad_queries;
  WholeTensor grad_keys;
  WholeTensor grad_values;
};
/// An empty grad_log_sum_exp means zeros. `factor` multiplies a probability after the softmax; empty means 1.
DenseAttention dense_attention(const WholeTensor& q, const WholeTensor& k, const WholeTensor& v, const ScoreBias& bias,
                               const WholeTensor& grad_output, const Doubles& grad_log_sum_exp = {},
                               const OfPairs& factor = {});

enum class MaskKind : std::uint8_t {
  kNone,
  kCausal,
  kKeysAllowed,
  kKeysAdded,
  kPairsAllowed,
  kPairsAdded,
  kBatchPairsAllowed,
  kBatchPairsAdded,
  kDocuments,
};
inline constexpr int kMaskKinds = 9;
std::string mask_name(const std::vector<MaskKind>& kinds);
/// Every kind of mask, and every pair of kinds.
std::vector<std::vector<MaskKind>> all_mask_kinds();

/// A combination of masks over a sequence, with formula numbers; some rows see nothing.
class TestMask {
 public:
  TestMask(std::vector<MaskKind> kinds, std::int64_t batch, std::int64_t length, std::uint64_t seed = 1);
  AttentionMask mask() const;
  /// The addend of scores, computed from the arrays without the library.
  double bias(std::int64_t b, std::int64_t q, std::int64_t k) const;
  ScoreBias score_bias() const {
    return [this](std::int64_t b, std::int64_t /*h*/, std::int64_t q, std::int64_t k) { return bias(b, q, k); };
  }
  bool is_causal() const;
  /// The documents, [batch, length]; empty without MaskKind::kDocuments.
  const std::vector<std::int32_t>& documents() const { return documents_; }

 private:
  std::vector<MaskKind> kinds_;
  std::int64_t batch_;
  std::int64_t length_;
  std::vector<std::vector<std::uint8_t>> allowed_;  // for each kind; empty if the kind adds values
  std::vector<std::vector<float>> added_;
  std::vector<std::int32_t> documents_;
};

/// The largest difference; 0 for two infinities of one sign, infinity for a NaN.
double largest_difference(const Doubles& a, const Doubles& b);

}  // namespace droptest::models
