// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/initial_weights.h"

#include <algorithm>
#include <boost/random/normal_distribution.hpp>

#include "sim/random/philox.h"

namespace droptest::models {

template <class T>
void set_initial_weights(std::span<const Gpt2Tensor> tensors, std::uint64_t seed, std::span<Parameter<T>> parameters) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Gpt2Tensor& tensor = tensors[i];
    const std::span<T> value = parameters[i].value;
    std::fill(value.begin(), value.end(), T(0));
    if (tensor.initial_deviation == 0) {
      std::fill(value.begin(), value.end(), static_cast<T>(tensor.initial_constant));
      continue;
    }
    // Every rank draws the whole tensor and takes its slice. How many random bits a value takes is itself random, so
    // values cannot be reached without those before them.
    sim::PhiloxEngine engine(seed, sim::Purpose::kWeights, tensor.number);
    boost::random::normal_distribution<double> normal(0.0, tensor.initial_deviation);
    std::uint64_t drawn = 0;
    tensor.slice.for_each_run([&](std::uint64_t full, std::uint64_t local, std::uint64_t count) {
      for (; drawn < full; ++drawn) normal(engine);
      for (std::uint64_t k = 0; k < count; ++k) value[local + k] = static_cast<T>(normal(engine));
      drawn += count;
    });
  }
}

template void set_initial_weights(std::span<const Gpt2Tensor>, std::uint64_t, std::span<Parameter<float>>);
template void set_initial_weights(std::span<const Gpt2Tensor>, std::uint64_t, std::span<Parameter<double>>);

}  // namespace droptest::models
