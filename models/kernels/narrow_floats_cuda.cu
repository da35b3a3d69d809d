// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "models/kernels/element_pack.cuh"
#include "models/kernels/narrow_floats.h"

namespace droptest::models {
namespace {

template <class D, class S, int V>
__global__ void convert_kernel(const S* input, std::int64_t count, D* output) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * V;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < count; i += step) {
    if (i + V <= count) {
      store_floats<V>(load_floats<V>(input + i), output + i);
    } else {
      for (std::int64_t j = i; j < count; ++j) output[j] = from_float<D>(as_float(input[j]));
    }
  }
}

}  // namespace

template <class To, class From>
void convert(comm::DeviceSpan<const From> input, comm::DeviceSpan<To> output, comm::Stream& stream) {
  using D = DeviceElement<To>;
  using S = DeviceElement<From>;
  constexpr int kVector = std::max(kPackElems<D>, kPackElems<S>);
  DROPTEST_CHECK(input.size() == output.size(), "convert: " + std::to_string(input.size()) + " elements into " +
                                                    std::to_string(output.size()) + " elements");
  const auto count = static_cast<std::int64_t>(input.size());
  if (packs_fit(input.data(), output.data())) {
    comm::launch("convert", convert_kernel<D, S, kVector>, comm::cover((input.size() + kVector - 1) / kVector), stream,
                 device_elems(input), count, device_elems(output));
  } else {
    comm::launch("convert", convert_kernel<D, S, 1>, comm::cover(input.size()), stream, device_elems(input), count,
                 device_elems(output));
  }
}

template void convert(comm::DeviceSpan<const float>, comm::DeviceSpan<float>, comm::Stream&);
template void convert(comm::DeviceSpan<const float>, comm::DeviceSpan<Bf16>, comm::Stream&);
template void convert(comm::DeviceSpan<const float>, comm::DeviceSpan<Fp16>, comm::Stream&);
template void convert(comm::DeviceSpan<const Bf16>, comm::DeviceSpan<float>, comm::Stream&);
template void convert(comm::DeviceSpan<const Bf16>, comm::DeviceSpan<Fp16>, comm::Stream&);
template void convert(comm::DeviceSpan<const Fp16>, comm::DeviceSpan<float>, comm::Stream&);
template void convert(comm::DeviceSpan<const Fp16>, comm::DeviceSpan<Bf16>, comm::Stream&);

}  // namespace droptest::models
