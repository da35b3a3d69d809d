// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parallel_embedding.h"

#include "models/gpt2/sum_over_ranks.h"

namespace droptest::models {

template <class T>
ParallelEmbedding<T>::ParallelEmbedding(Parameter<T>& wte, Parameter<T>& wpe, TokenRange range,
                                        const Execution& execution)
    : wte_(wte), wpe_(wpe), range_(range), execution_(execution) {}

template <class T>
void ParallelEmbedding<T>::forward(std::span<const std::int32_t> tokens, const BatchShape& shape,
                                   std::span<T> output) const {
  const auto width = static_cast<std::int64_t>(wte_.shape[1]);
  {
    const PhaseScope scope(execution_.times, Phase::kEmbedding);
    embedding_forward<T>(tokens, range_, wte_.value, width, output, execution_.team);
  }
  sum_over_ranks(execution_, output, {sim::TrafficClass::kTpForward, "wte", -1});
  const PhaseScope scope(execution_.times, Phase::kEmbedding);
  add_positions<T>(wpe_.value, shape.batch, shape.length, width, output, execution_.team);
}

template <class T>
void ParallelEmbedding<T>::backward(std::span<const std::int32_t> tokens, std::span<const T> grad_output,
                                    const BatchShape& shape) const {
  const auto width = static_cast<std::int64_t>(wte_.shape[1]);
  const PhaseScope scope(execution_.times, Phase::kEmbedding);
  positions_backward<T>(grad_output, shape.batch, shape.length, width, wpe_.gradient, execution_.team);
  embedding_backward<T>(tokens, range_, grad_output, width, wte_.gradient, execution_.team);
}

template class ParallelEmbedding<float>;
template class ParallelEmbedding<double>;

}  // namespace droptest::models
