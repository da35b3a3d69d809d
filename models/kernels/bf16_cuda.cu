// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "models/kernels/bf16.h"
#include "models/kernels/element_pack.cuh"

namespace droptest::models {
namespace {

template <class D, int V>
__global__ void convert_kernel(const float* input, std::int64_t count, D* output) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * V;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < count; i += step) {
    if (i + V <= count) {
      store_floats<V>(load_floats<V>(input + i), output + i);
    } else {
      for (std::int64_t j = i; j < count; ++j) output[j] = from_float<D>(input[j]);
    }
  }
}

}  // namespace

template <class E>
void convert(comm::DeviceSpan<const float> input, comm::DeviceSpan<E> output, comm::Stream& stream) {
  using D = DeviceElement<E>;
  constexpr int kVector = kPackElems<D>;
  DROPTEST_CHECK(input.size() == output.size(), "convert: " + std::to_string(input.size()) + " floats into " +
                                                    std::to_string(output.size()) + " elements");
  const auto count = static_cast<std::int64_t>(input.size());
  if (packs_fit(input.data(), output.data())) {
    comm::launch("convert", convert_kernel<D, kVector>, comm::cover((input.size() + kVector - 1) / kVector), stream,
                 input.data(), count, device_elems(output));
  } else {
    comm::launch("convert", convert_kernel<D, 1>, comm::cover(input.size()), stream, input.data(), count,
                 device_elems(output));
  }
}

template void convert<float>(comm::DeviceSpan<const float>, comm::DeviceSpan<float>, comm::Stream&);
template void convert<Bf16>(comm::DeviceSpan<const float>, comm::DeviceSpan<Bf16>, comm::Stream&);

}  // namespace droptest::models
