// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>

#include "models/kernels/block_reduction.cuh"
#include "models/kernels/dropout_draws.cuh"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/narrow_floats.h"

namespace droptest::models {
namespace {

template <class D, class Draws>
__global__ void drop_elements_kernel(const D* from, Draws draws, std::int64_t rows, std::int64_t width, D* to) {
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    typename Draws::Row drawn = draws.row(i);
    for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      to[i * width + j] = from_float<D>(drawn.factor(j) * as_float(from[i * width + j]));
    }
  }
}

}  // namespace

template <class E>
void drop_elements(comm::DeviceSpan<const E> from, const DropoutMask& mask, std::int64_t rows, std::int64_t width,
                   comm::DeviceSpan<E> to, comm::Stream& stream) {
  const auto count = static_cast<std::size_t>(rows * width);
  DROPTEST_CHECK(from.size() >= count && to.size() >= count,
                 "drop_elements: [" + std::to_string(rows) + ", " + std::to_string(width) + "] of " +
                     std::to_string(from.size()) + " and " + std::to_string(to.size()) + " elements");
  with_draws(mask, [&](const auto& draws) {
    comm::launch("drop_elements", drop_elements_kernel<DeviceElement<E>, std::decay_t<decltype(draws)>>,
                 block_per_row(rows, width), stream, device_elems(from), draws, rows, width, device_elems(to));
  });
}

template void drop_elements<float>(comm::DeviceSpan<const float>, const DropoutMask&, std::int64_t, std::int64_t,
                                   comm::DeviceSpan<float>, comm::Stream&);
template void drop_elements<Bf16>(comm::DeviceSpan<const Bf16>, const DropoutMask&, std::int64_t, std::int64_t,
                                  comm::DeviceSpan<Bf16>, comm::Stream&);
template void drop_elements<Fp16>(comm::DeviceSpan<const Fp16>, const DropoutMask&, std::int64_t, std::int64_t,
                                  comm::DeviceSpan<Fp16>, comm::Stream&);

}  // namespace droptest::models
