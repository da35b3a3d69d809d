// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/sum_over_ranks.h"

#include <type_traits>

#include "models/kernels/bf16.h"

namespace droptest::models {

template <class T>
void sum_over_ranks(const Execution& execution, std::span<T> data, const comm::Message& message) {
  const PhaseScope scope(execution.times, Phase::kReductions);
  if constexpr (std::is_same_v<T, float>) {
    if (execution.bf16_message != nullptr) {
      std::vector<Bf16>& buffer = *execution.bf16_message;
      if (buffer.size() < data.size()) buffer.resize(data.size());
      const std::span<Bf16> rounded = std::span(buffer).first(data.size());
      to_bf16(data, 1.0F, rounded, execution.team);
      execution.tensor_group.all_reduce(rounded, comm::ReduceOp::kSum, message);
      to_floats(rounded, data, execution.team);
      return;
    }
  }
  execution.tensor_group.all_reduce(data, comm::ReduceOp::kSum, message);
}

template void sum_over_ranks<float>(const Execution&, std::span<float>, const comm::Message&);
template void sum_over_ranks<double>(const Execution&, std::span<double>, const comm::Message&);

}  // namespace droptest::models
