// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "models/kernels/element_pack.cuh"
#include "models/kernels/gelu.h"
#include "models/kernels/narrow_floats.h"

namespace droptest::models {
namespace {

constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057307117F;
constexpr float kCubic = 0.044715F;

/// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)): no cancellation for negative u, and one exponential.
__device__ float gate(float x) {
  const float twice_u = kTwiceSqrtTwoOverPi * (x + kCubic * x * x * x);
  return 1.0F / (1.0F + expf(-twice_u));
}

/// d(x s(2u)) = s + x s (1 - s) d(2u)/dx.
__device__ float derivative(float x) {
  const float s = gate(x);
  return s + x * s * (1.0F - s) * (kTwiceSqrtTwoOverPi * (1.0F + 3.0F * kCubic * x * x));
}

template <class D, int V>
__global__ void bias_gelu_kernel(const D* bias, std::int64_t rows, std::int64_t width, D* values, D* output) {
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
      Floats<V> x = load_floats<V>(values + i * width + j);
      const Floats<V> b = load_floats<V>(bias + j);
      Floats<V> y;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        x.at[v] += b.at[v];
        y.at[v] = x.at[v] * gate(x.at[v]);
      }
      if (output != values) store_floats<V>(x, values + i * width + j);
      store_floats<V>(y, output + i * width + j);
    }
  }
}

template <class D, int V>
__global__ void gelu_backward_kernel(const D* inputs, std::int64_t count, D* gradient) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * V;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < count; i += step) {
    if (i + V <= count) {
      const Floats<V> x = load_floats<V>(inputs + i);
      Floats<V> g = load_floats<V>(gradient + i);
#pragma unroll
      for (int v = 0; v < V; ++v) g.at[v] *= derivative(x.at[v]);
      store_floats<V>(g, gradient + i);
    } else {
      for (std::int64_t j = i; j < count; ++j) {
        gradient[j] = from_float<D>(as_float(gradient[j]) * derivative(as_float(inputs[j])));
      }
    }
  }
}

}  // namespace

template <class E>
void bias_gelu(comm::DeviceSpan<const E> bias, std::int64_t rows, comm::DeviceSpan<E> values,
               comm::DeviceSpan<E> output, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const auto width = static_cast<std::int64_t>(bias.size());
  const auto count = static_cast<std::size_t>(rows * width);
  DROPTEST_CHECK(rows >= 0 && values.size() >= count && output.size() >= count,
                 "bias_gelu: [" + std::to_string(rows) + ", " + std::to_string(width) + "] of " +
                     std::to_string(values.size()) + " values into " + std::to_string(output.size()));
  const bool packs = rows_of_packs<D>(width, bias.data(), values.data(), output.data());
  const int vector = packs ? kPackElems<D> : 1;
  comm::launch("bias_gelu", packs ? bias_gelu_kernel<D, kPackElems<D>> : bias_gelu_kernel<D, 1>,
               block_per_row(rows, width / vector), stream, device_elems(bias), rows, width, device_elems(values),
               device_elems(output));
}

template <class E>
void gelu_backward(comm::DeviceSpan<const E> inputs, comm::DeviceSpan<E> gradient, comm::Stream& stream) {
  using D = DeviceElement<E>;
  DROPTEST_CHECK(inputs.size() == gradient.size(), "gelu_backward: inputs of " + std::to_string(inputs.size()) +
                                                       " elements, gradient of " + std::to_string(gradient.size()));
  const bool packs = packs_fit(inputs.data(), gradient.data());
  const std::size_t vector = packs ? kPackElems<D> : 1;
  comm::launch("gelu_backward", packs ? gelu_backward_kernel<D, kPackElems<D>> : gelu_backward_kernel<D, 1>,
               comm::cover((inputs.size() + vector - 1) / vector), stream, device_elems(inputs),
               static_cast<std::int64_t>(inputs.size()), device_elems(gradient));
}

#define DROPTEST_GELU(E)                                                                                        \
  template void bias_gelu<E>(comm::DeviceSpan<const E>, std::int64_t, comm::DeviceSpan<E>, comm::DeviceSpan<E>, \
                             comm::Stream&);                                                                    \
  template void gelu_backward<E>(comm::DeviceSpan<const E>, comm::DeviceSpan<E>, comm::Stream&);
DROPTEST_GELU(float)
DROPTEST_GELU(Bf16)
DROPTEST_GELU(Fp16)
#undef DROPTEST_GELU

}  // namespace droptest::models
