// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "models/kernels/adapter.h"
#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"

namespace droptest::models {
namespace {

/// The extents of an AdapterShape: I inputs, O outputs, rank R.
struct Extents {
  std::int64_t I, O, R;
  float scale;
};

/// weight, merged [I, O]; a [R, I]; b [O, R].
__global__ void merge_adapter_kernel(Extents n, const float* weight, const float* a, const float* b, float* merged) {
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < n.I * n.O;
       e += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t i = e / n.O;
    const std::int64_t o = e % n.O;
    float sum = 0;
    for (std::int64_t r = 0; r < n.R; ++r) sum += a[r * n.I + i] * b[o * n.R + r];
    merged[e] = weight[e] + n.scale * sum;
  }
}

/// A block processes one input at a time, which is one row of the gradient.
__global__ void adapter_a_gradient_kernel(Extents n, const float* grad_merged, const float* b, float* grad_a) {
  __shared__ float shared[kMostWarps];
  for (std::int64_t i = blockIdx.x; i < n.I; i += gridDim.x) {
    const float* row = grad_merged + i * n.O;
    for (std::int64_t r = 0; r < n.R; ++r) {
      float own = 0;
      for (std::int64_t o = threadIdx.x; o < n.O; o += blockDim.x) own += row[o] * b[o * n.R + r];
      const float sum = block_sum(own, shared);
      if (threadIdx.x == 0) grad_a[r * n.I + i] = n.scale * sum;
      __syncthreads();
    }
  }
}

/// A thread computes an element of B; neighbouring threads read neighbouring columns of the gradient.
__global__ void adapter_b_gradient_kernel(Extents n, const float* grad_merged, const float* a, float* grad_b) {
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; e < n.R * n.O;
       e += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t r = e / n.O;
    const std::int64_t o = e % n.O;
    float sum = 0;
    for (std::int64_t i = 0; i < n.I; ++i) sum += a[r * n.I + i] * grad_merged[i * n.O + o];
    grad_b[o * n.R + r] = n.scale * sum;
  }
}

/// Checks the numbers of elements, and returns the extents. `matrices` are the tensors of the weight's shape; `of_a`
/// and `of_b` are A, B and their gradients.
Extents extents_of(const char* operation, const AdapterShape& s, std::initializer_list<std::size_t> matrices,
                   std::initializer_list<std::size_t> of_a, std::initializer_list<std::size_t> of_b) {
  const auto are = [](std::initializer_list<std::size_t> sizes, std::int64_t wanted) {
    return std::all_of(sizes.begin(), sizes.end(),
                       [wanted](std::size_t size) { return size == static_cast<std::size_t>(wanted); });
  };
  DROPTEST_CHECK(are(matrices, s.inputs * s.outputs) && are(of_a, s.rank * s.inputs) && are(of_b, s.outputs * s.rank),
                 std::string(operation) + ": " + std::to_string(s.inputs) + " inputs, " + std::to_string(s.outputs) +
                     " outputs, rank " + std::to_string(s.rank) + ": a tensor does not fit");
  return {s.inputs, s.outputs, s.rank, static_cast<float>(s.scale)};
}

}  // namespace

void merge_adapter(const AdapterShape& shape, comm::DeviceSpan<const float> weight, comm::DeviceSpan<const float> a,
                   comm::DeviceSpan<const float> b, comm::DeviceSpan<float> merged, comm::Stream& stream) {
  const Extents n = extents_of("merge_adapter", shape, {weight.size(), merged.size()}, {a.size()}, {b.size()});
  comm::launch("merge_adapter", merge_adapter_kernel, comm::cover(merged.size()), stream, n, weight.data(), a.data(),
               b.data(), merged.data());
}

void adapter_gradients(const AdapterShape& shape, comm::DeviceSpan<const float> grad_merged,
                       comm::DeviceSpan<const float> a, comm::DeviceSpan<const float> b, comm::DeviceSpan<float> grad_a,
                       comm::DeviceSpan<float> grad_b, comm::Stream& stream) {
  const Extents n = extents_of("adapter_gradients", shape, {grad_merged.size()}, {a.size(), grad_a.size()},
                               {b.size(), grad_b.size()});
  comm::launch("adapter_a_gradient", adapter_a_gradient_kernel, block_per_row(n.I, n.O, 256), stream, n,
               grad_merged.data(), b.data(), grad_a.data());
  comm::launch("adapter_b_gradient", adapter_b_gradient_kernel, comm::cover(grad_b.size()), stream, n,
               grad_merged.data(), a.data(), grad_b.data());
}

}  // namespace droptest::models
