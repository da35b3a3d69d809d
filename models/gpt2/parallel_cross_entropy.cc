// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parallel_cross_entropy.h"

#include <cmath>

#include "models/kernels/cross_entropy.h"

namespace droptest::models {

template <class T>
ParallelCrossEntropy<T>::ParallelCrossEntropy(TokenRange range, const Execution& execution)
    : range_(range), execution_(execution) {}

template <class T>
double ParallelCrossEntropy<T>::forward(std::span<T> logits, std::span<const std::int32_t> targets) {
  largest_.resize(targets.size());
  sums_.resize(targets.size());
  predicted_.resize(targets.size());
  const auto reduce = [&](std::vector<T>& values, comm::ReduceOp op, const char* name) {
    execution_.tensor_group.all_reduce(std::span<T>(values), op, {sim::TrafficClass::kControl, name, -1});
  };
  row_maxima<T>(logits, range_.count, largest_, execution_.threads);
  reduce(largest_, comm::ReduceOp::kMax, "cross_entropy.max");
  exponentials<T>(logits, range_, targets, largest_, sums_, predicted_, execution_.threads);
  reduce(sums_, comm::ReduceOp::kSum, "cross_entropy.sum_exp");
  reduce(predicted_, comm::ReduceOp::kSum, "cross_entropy.predicted");
  double loss = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    loss += std::log(static_cast<double>(sums_[i])) - static_cast<double>(predicted_[i]);
  }
  return loss / static_cast<double>(targets.size());
}

template <class T>
void ParallelCrossEntropy<T>::to_gradient(std::span<T> logits, std::span<const std::int32_t> targets) const {
  exponentials_to_gradient<T>(logits, range_, targets, sums_, execution_.threads);
}

template class ParallelCrossEntropy<float>;
template class ParallelCrossEntropy<double>;

}  // namespace droptest::models
