// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/lm_head.h"

#include <algorithm>

#include "models/gpt2/sum_over_ranks.h"
#include "models/gpt2/weight_products.h"

namespace droptest::models {
namespace {

std::span<const std::int32_t> rows_of(std::span<const std::int32_t> targets, std::int64_t first, std::int64_t count) {
  return targets.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

}  // namespace

template <class T>
LmHead<T>::LmHead(Parameter<T>& wte, TokenRange range, std::int64_t largest_part, const Execution& execution,
                  std::int64_t max_logits)
    : wte_(wte),
      columns_(range.count),
      width_(static_cast<std::int64_t>(wte.shape[1])),
      most_rows_(most_rows(largest_part, max_logits)),
      execution_(execution),
      cross_entropy_(range, execution) {}

template <class T>
std::int64_t LmHead<T>::most_rows(std::int64_t largest_part, std::int64_t max_logits) {
  return std::max<std::int64_t>(1, max_logits / std::max<std::int64_t>(1, largest_part));
}

template <class T>
std::int64_t LmHead<T>::rows_per_chunk(std::int64_t rows, std::int64_t most_rows) {
  const std::int64_t chunks = std::max<std::int64_t>(1, (rows + most_rows - 1) / most_rows);
  return (rows + chunks - 1) / chunks;
}

template <class T>
std::uint64_t LmHead<T>::logits_elems(std::int64_t rows, std::int64_t largest_part, std::int64_t columns) {
  return static_cast<std::uint64_t>(rows_per_chunk(rows, most_rows(largest_part, kMaxLogits)) * columns);
}

template <class T>
template <class Body>
void LmHead<T>::for_each_chunk(std::int64_t rows, const Body& body) const {
  const std::int64_t step = rows_per_chunk(rows, most_rows_);
  for (std::int64_t row = 0; row < rows; row += step) body(Chunk{row, std::min(step, rows - row)});
}

template <class T>
LinearShape LmHead<T>::shape_of(Chunk chunk) const {
  return {chunk.rows, width_, columns_, WeightLayout::kOutputsByInputs};
}

template <class T>
std::span<T> LmHead<T>::logits(Chunk chunk) {
  return std::span(logits_).first(static_cast<std::size_t>(chunk.rows * columns_));
}

template <class T>
void LmHead<T>::compute_logits(std::span<const T> normalized, Chunk chunk) {
  const auto most = static_cast<std::size_t>(chunk.rows * columns_);
  if (logits_.size() < most) logits_.resize(most);
  product<T>(wte_, shape_of(chunk), normalized.subspan(static_cast<std::size_t>(chunk.first_row * width_)),
             Output::kSet, logits(chunk), execution_);
}

template <class T>
double LmHead<T>::chunk_forward(std::span<const T> normalized, std::span<const std::int32_t> targets, Chunk chunk) {
  compute_logits(normalized, chunk);
  hold_ = Hold::kExponentials;
  held_first_row_ = chunk.first_row;
  const PhaseScope scope(execution_.times, Phase::kCrossEntropy);
  return cross_entropy_.forward_rows(static_cast<std::size_t>(chunk.first_row), logits(chunk),
                                     rows_of(targets, chunk.first_row, chunk.rows));
}

template <class T>
void LmHead<T>::chunk_backward(std::span<const T> normalized, std::span<const std::int32_t> targets, Chunk chunk,
                               T factor, std::span<T> grad_normalized) {
  const auto first_row = static_cast<std::size_t>(chunk.first_row);
  const std::span<const std::int32_t> chunk_targets = rows_of(targets, chunk.first_row, chunk.rows);
  if (hold_ == Hold::kNothing || held_first_row_ != chunk.first_row) {
    compute_logits(normalized, chunk);
    const PhaseScope scope(execution_.times, Phase::kCrossEntropy);
    cross_entropy_.repeat_rows(first_row, logits(chunk), chunk_targets);
    hold_ = Hold::kExponentials;
    held_first_row_ = chunk.first_row;
  }
  if (hold_ == Hold::kExponentials) {
    const PhaseScope scope(execution_.times, Phase::kCrossEntropy);
    cross_entropy_.to_gradient_rows(first_row, logits(chunk), chunk_targets);
    hold_ = Hold::kGradient;
  }
  const auto offset = static_cast<std::size_t>(chunk.first_row * width_);
  const GradientMode mode = chunk.first_row == 0 ? execution_.gradient_mode : GradientMode::kAdd;
  product_backward<T>(wte_, shape_of(chunk), normalized.subspan(offset), logits(chunk), factor, mode,
                      grad_normalized.subspan(offset), execution_);
}

template <class T>
double LmHead<T>::forward(std::span<const T> normalized, std::span<const std::int32_t> targets) {
  cross_entropy_.start(targets.size());
  double loss = 0;
  for_each_chunk(static_cast<std::int64_t>(targets.size()),
                 [&](Chunk chunk) { loss += chunk_forward(normalized, targets, chunk); });
  return loss / static_cast<double>(targets.size());
}

template <class T>
void LmHead<T>::backward(std::span<const T> normalized, std::span<const std::int32_t> targets, double scale,
                         std::span<T> grad_normalized) {
  // The mean over rows and the caller's scale enter here, as the factor of both products.
  const auto factor = static_cast<T>(scale / static_cast<double>(targets.size()));
  for_each_chunk(static_cast<std::int64_t>(targets.size()),
                 [&](Chunk chunk) { chunk_backward(normalized, targets, chunk, factor, grad_normalized); });
  sum_over_ranks(execution_, grad_normalized, {sim::TrafficClass::kTpBackward, "lm_head.backward", -1});
}

template <class T>
double LmHead<T>::forward_backward(std::span<const T> normalized, std::span<const std::int32_t> targets, double scale,
                                   std::span<T> grad_normalized) {
  cross_entropy_.start(targets.size());
  const auto factor = static_cast<T>(scale / static_cast<double>(targets.size()));
  double loss = 0;
  for_each_chunk(static_cast<std::int64_t>(targets.size()), [&](Chunk chunk) {
    loss += chunk_forward(normalized, targets, chunk);
    chunk_backward(normalized, targets, chunk, factor, grad_normalized);
  });
  sum_over_ranks(execution_, grad_normalized, {sim::TrafficClass::kTpBackward, "lm_head.backward", -1});
  return loss / static_cast<double>(targets.size());
}

template class LmHead<float>;
template class LmHead<double>;

}  // namespace droptest::models
