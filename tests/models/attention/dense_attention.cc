// SPDX-License-Identifier: Apache-2.0
#include "tests/models/attention/dense_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace droptest::models {
namespace {

constexpr double kForbidden = -std::numeric_limits<double>::infinity();

}  // namespace

double formula_number(std::uint64_t tensor, std::uint64_t index) {
  auto x = static_cast<std::uint32_t>(index * 2654435761U + tensor * 40503U * 65537U + 12345U);
  x ^= x >> 15U;
  x *= 2246822519U;
  x ^= x >> 13U;
  return (x >> 16U) / 65536.0 - 0.5;
}

Doubles formula_numbers(std::uint64_t tensor, std::uint64_t count) {
  Doubles values;
  for (std::uint64_t i = 0; i < count; ++i) values.push_back(formula_number(tensor, i));
  return values;
}

double& WholeTensor::at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) {
  return elems[static_cast<std::size_t>(((b * shape.tokens + t) * shape.heads + h) * shape.width + d)];
}
double WholeTensor::at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) const {
  return const_cast<WholeTensor*>(this)->at(b, t, h, d);
}

template <class T>
std::vector<T> WholeTensor::part(const std::vector<std::int64_t>& positions, std::int64_t first_head,
                                 std::int64_t heads, TokenLayout layout) const {
  const auto tokens = static_cast<std::int64_t>(positions.size());
  std::vector<T> result;
  const bool batch_first = layout == TokenLayout::kBatchFirst;
  for (std::int64_t i = 0; i < (batch_first ? shape.batch : tokens); ++i) {
    for (std::int64_t j = 0; j < (batch_first ? tokens : shape.batch); ++j) {
      const std::int64_t b = batch_first ? i : j;
      const std::int64_t t = positions[static_cast<std::size_t>(batch_first ? j : i)];
      for (std::int64_t h = first_head; h < first_head + heads; ++h) {
        for (std::int64_t d = 0; d < shape.width; ++d) result.push_back(static_cast<T>(at(b, t, h, d)));
      }
    }
  }
  return result;
}
template std::vector<double> WholeTensor::part(const std::vector<std::int64_t>&, std::int64_t, std::int64_t,
                                               TokenLayout) const;
template std::vector<float> WholeTensor::part(const std::vector<std::int64_t>&, std::int64_t, std::int64_t,
                                              TokenLayout) const;

DenseAttention dense_attention(const WholeTensor& q, const WholeTensor& k, const WholeTensor& v, const ScoreBias& bias,
                               const WholeTensor& grad_output, const Doubles& grad_log_sum_exp, const OfPairs& factor) {
  DenseAttention result{WholeTensor(q.shape), Doubles(), WholeTensor(q.shape), WholeTensor(k.shape),
                        WholeTensor(v.shape)};
  const auto [batch, queries, heads, width] = q.shape;
  const std::int64_t keys = k.shape.tokens;
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < queries; ++i) {
        Doubles score(static_cast<std::size_t>(keys));
        double largest = kForbidden;
        for (std::int64_t j = 0; j < keys; ++j) {
          double& s = score[static_cast<std::size_t>(j)];
          for (std::int64_t d = 0; d < width; ++d) s += q.at(b, i, h, d) * k.at(b, j, h, d);
          s = s * scale + bias(b, h, i, j);
          largest = std::max(largest, s);
        }
        double sum = 0;
        for (double& s : score) {
          s = largest == kForbidden ? 0 : std::exp(s - largest);
          sum += s;
        }
        result.log_sum_exp.push_back(sum == 0 ? kForbidden : largest + std::log(sum));
        if (sum == 0) continue;
        for (double& s : score) s /= sum;
        const auto factor_at = [&](std::int64_t j) { return factor ? factor(b, h, i, j) : 1; };
        for (std::int64_t j = 0; j < keys; ++j) {
          const double p = factor_at(j) * score[static_cast<std::size_t>(j)];
          for (std::int64_t d = 0; d < width; ++d) {
            result.output.at(b, i, h, d) += p * v.at(b, j, h, d);
          }
        }
        double inner = 0;
        for (std::int64_t d = 0; d < width; ++d) inner += result.output.at(b, i, h, d) * grad_output.at(b, i, h, d);
        if (!grad_log_sum_exp.empty()) inner -= grad_log_sum_exp[result.log_sum_exp.size() - 1];
        for (std::int64_t j = 0; j < keys; ++j) {
          const double p = score[static_cast<std::size_t>(j)];
          const double f = factor_at(j);
          double dp = 0;
          for (std::int64_t d = 0; d < width; ++d) dp += f * grad_output.at(b, i, h, d) * v.at(b, j, h, d);
          for (std::int64_t d = 0; d < width; ++d) {
            result.grad_values.at(b, j, h, d) += f * p * grad_output.at(b, i, h, d);
            result.grad_queries.at(b, i, h, d) += p * (dp - inner) * scale * k.at(b, j, h, d);
            result.grad_keys.at(b, j, h, d) += p * (dp - inner) * scale * q.at(b, i, h, d);
          }
        }
      }
    }
  }
  return result;
}

std::string mask_name(const std::vector<MaskKind>& kinds) {
  constexpr const char* kNames[kMaskKinds] = {
      "none",          "causal",      "keys_allowed",        "keys_added",
      "pairs_allowed", "pairs_added", "batch_pairs_allowed", "batch_pairs_added",
      "documents"};
  std::string name;
  for (const MaskKind kind : kinds) name += (name.empty() ? "" : "+") + std::string(kNames[static_cast<int>(kind)]);
  return name;
}

std::vector<std::vector<MaskKind>> all_mask_kinds() {
  std::vector<std::vector<MaskKind>> all;
  for (int first = 0; first < kMaskKinds; ++first) {
    all.push_back({static_cast<MaskKind>(first)});
    for (int second = first + 1; second < kMaskKinds; ++second) {
      if (first > 0) all.push_back({static_cast<MaskKind>(first), static_cast<MaskKind>(second)});
    }
  }
  return all;
}

TestMask::TestMask(std::vector<MaskKind> kinds, std::int64_t batch, std::int64_t length, std::uint64_t seed)
    : kinds_(std::move(kinds)), batch_(batch), length_(length), allowed_(kMaskKinds), added_(kMaskKinds) {
  const auto keys = static_cast<std::uint64_t>(length);
  const std::uint64_t counts[kMaskKinds] = {0,
                                            0,
                                            static_cast<std::uint64_t>(batch) * keys,
                                            static_cast<std::uint64_t>(batch) * keys,
                                            keys * keys,
                                            keys * keys,
                                            static_cast<std::uint64_t>(batch) * keys * keys,
                                            static_cast<std::uint64_t>(batch) * keys * keys,
                                            0};
  for (const MaskKind kind : kinds_) {
    const auto index = static_cast<std::size_t>(kind);
    for (std::uint64_t i = 0; i < counts[index]; ++i) {
      const double number = formula_number(100 * seed + index, i);
      // One query in seven sees no key.
      const bool row_is_blind = i / keys % 7 == 3;
      const bool allowed = !row_is_blind && number < 0.2;
      const bool adds =
          kind == MaskKind::kKeysAdded || kind == MaskKind::kPairsAdded || kind == MaskKind::kBatchPairsAdded;
      if (adds) {
        added_[index].push_back(allowed ? static_cast<float>(4 * number) : -std::numeric_limits<float>::infinity());
      } else {
        allowed_[index].push_back(allowed ? 2 : 0);
      }
    }
    if (kind != MaskKind::kDocuments) continue;
    // Documents of 1 to 5 tokens, with padding at the end.
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t t = 0; t < length; ++t) {
        documents_.push_back(length > 4 && t >= length - b ? -1 : static_cast<std::int32_t>((t + b) / (2 + b % 3)));
      }
    }
  }
}

bool TestMask::is_causal() const { return std::ranges::count(kinds_, MaskKind::kCausal) > 0; }

AttentionMask TestMask::mask() const {
  std::vector<MaskArray> arrays;
  const auto add = [&](MaskKind kind, MaskArray::Axes axes) {
    if (std::ranges::count(kinds_, kind) == 0) return;
    const auto index = static_cast<std::size_t>(kind);
    if (!added_[index].empty()) {
      arrays.push_back({axes, std::span<const float>(added_[index])});
    } else {
      arrays.push_back({axes, std::span<const std::uint8_t>(allowed_[index])});
    }
  };
  add(MaskKind::kKeysAllowed, MaskArray::Axes::kKeys);
  add(MaskKind::kKeysAdded, MaskArray::Axes::kKeys);
  add(MaskKind::kPairsAllowed, MaskArray::Axes::kQueriesKeys);
  add(MaskKind::kPairsAdded, MaskArray::Axes::kQueriesKeys);
  add(MaskKind::kBatchPairsAllowed, MaskArray::Axes::kBatchQueriesKeys);
  add(MaskKind::kBatchPairsAdded, MaskArray::Axes::kBatchQueriesKeys);
  return AttentionMask(is_causal() ? Causality::kCausal : Causality::kAny, {batch_, length_, length_},
                       std::move(arrays), documents_);
}

double TestMask::bias(std::int64_t b, std::int64_t q, std::int64_t k) const {
  double bias = 0;
  for (const MaskKind kind : kinds_) {
    const auto index = static_cast<std::size_t>(kind);
    std::int64_t at = 0;
    switch (kind) {
      case MaskKind::kNone:
        continue;
      case MaskKind::kCausal:
        if (k > q) return kForbidden;
        continue;
      case MaskKind::kDocuments: {
        const std::int32_t of_key = documents_[static_cast<std::size_t>(b * length_ + k)];
        if (of_key < 0 || of_key != documents_[static_cast<std::size_t>(b * length_ + q)]) return kForbidden;
        continue;
      }
      case MaskKind::kKeysAllowed:
      case MaskKind::kKeysAdded:
        at = b * length_ + k;
        break;
      case MaskKind::kPairsAllowed:
      case MaskKind::kPairsAdded:
        at = q * length_ + k;
        break;
      case MaskKind::kBatchPairsAllowed:
      case MaskKind::kBatchPairsAdded:
        at = (b * length_ + q) * length_ + k;
        break;
    }
    if (!added_[index].empty()) {
      bias += added_[index][static_cast<std::size_t>(at)];
    } else if (allowed_[index][static_cast<std::size_t>(at)] == 0) {
      return kForbidden;
    }
  }
  return bias;
}

double largest_difference(const Doubles& a, const Doubles& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace droptest::models
