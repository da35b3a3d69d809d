// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parallel_cross_entropy.h"

#include <cmath>
#include <utility>

#include "models/kernels/cross_entropy.h"

namespace droptest::models {

template <class T>
ParallelCrossEntropy<T>::ParallelCrossEntropy(TokenRange range, const Execution& execution)
    : range_(range), execution_(execution) {}

template <class T>
void ParallelCrossEntropy<T>::start(std::size_t rows) {
  largest_.resize(rows);
  sums_.resize(rows);
  predicted_.resize(rows);
}

template <class T>
double ParallelCrossEntropy<T>::forward_rows(std::size_t first_row, std::span<T> logits,
                                             std::span<const std::int32_t> targets) {
  const auto largest = std::span(largest_).subspan(first_row, targets.size());
  const auto sums = std::span(sums_).subspan(first_row, targets.size());
  const auto predicted = std::span(predicted_).subspan(first_row, targets.size());
  const auto reduce = [&](std::span<T> values, comm::ReduceOp op, const char* name) {
    execution_.tensor_group.all_reduce(values, op, {sim::TrafficClass::kControl, name, -1});
  };
  row_maxima<T>(logits, range_.count, largest, execution_.team);
  reduce(largest, comm::ReduceOp::kMax, "cross_entropy.max");
  exponentials<T>(logits, range_, targets, largest, sums, predicted, execution_.team);
  reduce(sums, comm::ReduceOp::kSum, "cross_entropy.sum_exp");
  reduce(predicted, comm::ReduceOp::kSum, "cross_entropy.predicted");
  double loss = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    loss += std::log(static_cast<double>(sums[i])) - static_cast<double>(predicted[i]);
  }
  return loss;
}

template <class T>
void ParallelCrossEntropy<T>::repeat_rows(std::size_t first_row, std::span<T> logits,
                                          std::span<const std::int32_t> targets) {
  // Sums and targets' logits of this rank alone: those of all ranks are kept.
  own_sums_.resize(targets.size());
  own_predicted_.resize(targets.size());
  exponentials<T>(logits, range_, targets, std::span(std::as_const(largest_)).subspan(first_row, targets.size()),
                  own_sums_, own_predicted_, execution_.team);
}

template <class T>
void ParallelCrossEntropy<T>::to_gradient_rows(std::size_t first_row, std::span<T> logits,
                                               std::span<const std::int32_t> targets) const {
  exponentials_to_gradient<T>(logits, range_, targets, std::span(sums_).subspan(first_row, targets.size()),
                              execution_.team);
}

template class ParallelCrossEntropy<float>;
template class ParallelCrossEntropy<double>;

}  // namespace droptest::models
