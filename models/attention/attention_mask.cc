// SPDX-License-Identifier: Apache-2.0
#include "models/attention/attention_mask.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "sim/error.h"

namespace droptest::models {
namespace {

using Axes = MaskArray::Axes;

struct AxesText {
  std::string_view name;
  std::string_view axes;
};
AxesText text_of(Axes axes) {
  constexpr std::array kTexts = {AxesText{"key padding mask", "[batch, keys]"}, AxesText{"2-D mask", "[queries, keys]"},
                                 AxesText{"3-D mask", "[batch, queries, keys]"}};
  return kTexts[static_cast<std::size_t>(axes)];
}

std::string at(std::size_t array, Axes axes) {
  return std::string(text_of(axes).name) + " (array " + std::to_string(array) + ")";
}

template <class V>
void check_added(std::span<const V> values, const std::string& where) {
  const auto wrong =
      std::ranges::find_if(values, [](V v) { return std::isnan(v) || v == std::numeric_limits<V>::infinity(); });
  if (wrong == values.end()) return;
  throw ConfigError(where + ": element " + std::to_string(wrong - values.begin()) + ": got " +
                    (std::isnan(*wrong) ? "NaN" : "infinity") + ", want a number or minus infinity");
}

/// The elements of the array for one sequence and one query, one element for each key.
template <class V>
const V* row_of(const V* values, Axes axes, const MaskExtents& extents, std::int64_t batch, std::int64_t query) {
  if (axes == Axes::kKeys) return values + batch * extents.keys;
  if (axes == Axes::kQueriesKeys) return values + query * extents.keys;
  return values + (batch * extents.queries + query) * extents.keys;
}

template <class T, class V>
void add_row(const V* values, const PositionSteps& keys, T* scores, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) {
    const V value = values[keys.first + j * keys.step];
    if constexpr (std::is_floating_point_v<V>) {
      scores[j] += static_cast<T>(value);
    } else {
      scores[j] = value != 0 ? scores[j] : -std::numeric_limits<T>::infinity();
    }
  }
}

}  // namespace

AttentionMask::AttentionMask(Causality causality, const MaskExtents& extents, std::vector<MaskArray> arrays,
                             std::span<const std::int32_t> documents)
    : causality_(causality), extents_(extents), arrays_(std::move(arrays)), documents_(documents) {
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    const auto& [axes, values] = arrays_[i];
    const std::int64_t batch = axes == Axes::kQueriesKeys ? 1 : extents.batch;
    const std::int64_t queries = axes == Axes::kKeys ? 1 : extents.queries;
    const auto want = static_cast<std::uint64_t>(batch * queries * extents.keys);
    if (values.count_elems() != want) {
      throw ConfigError(at(i, axes) + ": got " + std::to_string(values.count_elems()) + " elements, want " +
                        std::to_string(want) + " = " + std::string(text_of(axes).axes) + " of " +
                        std::to_string(extents.batch) + " sequences, " + std::to_string(extents.queries) +
                        " queries and " + std::to_string(extents.keys) + " keys");
    }
    if (values.type == comm::ElementType::kFloat32) {
      check_added(values.as<float>(), at(i, axes));
    } else if (values.type == comm::ElementType::kFloat64) {
      check_added(values.as<double>(), at(i, axes));
    } else if (values.type != comm::ElementType::kUint8) {
      throw ConfigError(at(i, axes) + ": got elements of type " + std::string(comm::element_type_name(values.type)) +
                        ", want uint8 (whether to attend), float32 or float64 (to be added)");
    }
  }
  const std::int64_t positions = extents.batch * extents.keys;
  if (documents.empty()) return;
  if (extents.queries != extents.keys) {
    throw ConfigError("documents: got " + std::to_string(extents.queries) + " queries and " +
                      std::to_string(extents.keys) + " keys, want queries and keys of the same tokens");
  }
  if (static_cast<std::int64_t>(documents.size()) != positions) {
    throw ConfigError("documents: got " + std::to_string(documents.size()) + " elements, want " +
                      std::to_string(positions) + " = [batch, positions]");
  }
}

void AttentionMask::check_covers(std::int64_t batch, std::int64_t length) const {
  if (!has_values() || (extents_.batch == batch && extents_.queries == length && extents_.keys == length)) return;
  throw ConfigError("mask: got " + std::to_string(extents_.batch) + " sequences, " + std::to_string(extents_.queries) +
                    " queries and " + std::to_string(extents_.keys) + " keys, want " + std::to_string(batch) +
                    " sequences of " + std::to_string(length) +
                    " tokens: a mask covers the whole sequence on each rank");
}

bool AttentionMask::hides(std::int64_t batch, const PositionSteps& queries, std::int64_t query_count,
                          const PositionSteps& keys, std::int64_t key_count) const {
  if (documents_.empty()) return false;
  const auto range = [&](const PositionSteps& positions, std::int64_t count) {
    std::pair<std::int32_t, std::int32_t> ends{std::numeric_limits<std::int32_t>::max(), -1};  // lowest and highest
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t document =
          documents_[static_cast<std::size_t>(batch * extents_.keys + positions.first + i * positions.step)];
      if (document < 0) continue;
      ends = {std::min(ends.first, document), std::max(ends.second, document)};
    }
    return ends;
  };
  const auto of_queries = range(queries, query_count);
  const auto of_keys = range(keys, key_count);
  return of_queries.second < of_keys.first || of_keys.second < of_queries.first;
}

template <class T>
void AttentionMask::add_to(std::int64_t batch, const PositionSteps& queries, const PositionSteps& keys,
                           const Matrix<T>& scores) const {
  for (const MaskArray& array : arrays_) {
    const comm::ConstTensor& values = array.values;
    for (std::int64_t i = 0; i < scores.rows; ++i) {
      const std::int64_t query = queries.first + i * queries.step;
      T* row = scores.data + i * scores.stride;
      const auto add = [&](auto elems) {
        add_row(row_of(elems.data(), array.axes, extents_, batch, query), keys, row, scores.columns);
      };
      if (values.type == comm::ElementType::kUint8) {
        add(values.as<std::uint8_t>());
      } else if (values.type == comm::ElementType::kFloat32) {
        add(values.as<float>());
      } else {
        add(values.as<double>());
      }
    }
  }
  if (documents_.empty()) return;
  const std::int32_t* of_sequence = documents_.data() + batch * extents_.keys;
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    const std::int32_t document = of_sequence[queries.first + i * queries.step];
    T* row = scores.data + i * scores.stride;
    for (std::int64_t j = 0; j < scores.columns; ++j) {
      const std::int32_t of_key = of_sequence[keys.first + j * keys.step];
      row[j] = of_key == document && of_key >= 0 ? row[j] : -std::numeric_limits<T>::infinity();
    }
  }
}

template <class T>
std::vector<T> combined_mask(const AttentionMask& mask, std::int64_t batch, std::span<const std::int64_t> queries,
                             std::span<const std::int64_t> keys) {
  const auto columns = static_cast<std::int64_t>(keys.size());
  std::vector<T> combined(static_cast<std::size_t>(batch) * queries.size() * keys.size());
  T* row = combined.data();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (const std::int64_t query : queries) {
      for (std::int64_t j = 0; j < columns; ++j) {
        const PositionSteps key{keys[static_cast<std::size_t>(j)], 1};
        if (mask.visible(query, key, 1) == 0) {
          row[j] = -std::numeric_limits<T>::infinity();
        } else {
          mask.add_to(b, {query, 1}, key, Matrix<T>{row + j, 1, 1, columns});
        }
      }
      row += columns;
    }
  }
  return combined;
}

template void AttentionMask::add_to(std::int64_t, const PositionSteps&, const PositionSteps&,
                                    const Matrix<float>&) const;
template void AttentionMask::add_to(std::int64_t, const PositionSteps&, const PositionSteps&,
                                    const Matrix<double>&) const;
template std::vector<float> combined_mask(const AttentionMask&, std::int64_t, std::span<const std::int64_t>,
                                          std::span<const std::int64_t>);
template std::vector<double> combined_mask(const AttentionMask&, std::int64_t, std::span<const std::int64_t>,
                                           std::span<const std::int64_t>);

}  // namespace droptest::models
