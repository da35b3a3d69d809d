// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "models/kernels/bf16.h"
#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/layernorm.h"

namespace droptest::models {
namespace {

// A block has a row at a time. Where rows are packs of 16 bytes, one for each thread, all of a row is in registers;
// else each thread has the same columns in every pass, and what it leaves in shared memory is read by no other.
constexpr unsigned kMostThreads = 512;
constexpr std::uint64_t kMostRowBlocks = 4096;  // more rows than that share what a block has loaded of gain and bias
constexpr std::size_t kMostSharedBytes = 96U * 1024U;

/// What is added up before the normalisation.
template <class D>
struct Addends {
  const D* residual;
  const D* branch;       ///< null: none
  const D* branch_bias;  ///< null: none
};

/// What the normalisation leaves.
template <class D>
struct Normalized {
  D* residual_after;  ///< null: the sum is the residual
  D* output;
  float* mean;
  float* inverse_deviation;
};

template <class D, int V>
__device__ Floats<V> sum_at(const Addends<D>& in, std::int64_t row_start, std::int64_t j) {
  Floats<V> x = load_floats<V>(in.residual + row_start + j);
  if (in.branch == nullptr) return x;
  const Floats<V> branch = load_floats<V>(in.branch + row_start + j);
  Floats<V> bias = {};
  if (in.branch_bias != nullptr) bias = load_floats<V>(in.branch_bias + j);
#pragma unroll
  for (int v = 0; v < V; ++v) x.at[v] = rounded_to<D>(x.at[v] + (branch.at[v] + bias.at[v]));
  return x;
}

/// The row's mean, and after it one over its deviation, of the elements that `own` says.
struct RowMoments {
  float mean;
  float inverse_deviation;
};

/// `own` calls its argument with each of the thread's elements.
template <class Own>
__device__ RowMoments row_moments(const Own& own, std::int64_t width, float* sums, float* squares) {
  float sum = 0;
  own([&sum](float x) { sum += x; });
  const float mean = block_sum(sum, sums) / static_cast<float>(width);
  float square = 0;
  own([&square, mean](float x) { square += (x - mean) * (x - mean); });
  const float variance = block_sum(square, squares) / static_cast<float>(width);
  return {mean, 1.0F / sqrtf(variance + static_cast<float>(kLayerNormEpsilon))};
}

/// One pack for each thread.
template <class D, int V>
__global__ void layernorm_forward_packs_kernel(Addends<D> in, const D* gain, const D* bias, std::int64_t rows,
                                               std::int64_t width, Normalized<D> out) {
  __shared__ float sums[kMostWarps];
  __shared__ float squares[kMostWarps];
  const std::int64_t j = threadIdx.x * V;
  const bool inside = j < width;
  Floats<V> g = {};
  Floats<V> b = {};
  if (inside) {
    g = load_floats<V>(gain + j);
    b = load_floats<V>(bias + j);
  }
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    Floats<V> x = {};
    if (inside) x = sum_at<D, V>(in, i * width, j);
    if (inside && out.residual_after != nullptr) store_floats<V>(x, out.residual_after + i * width + j);
    const auto own = [&x, inside](const auto& use) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (inside) use(x.at[v]);
      }
    };
    const RowMoments moments = row_moments(own, width, sums, squares);
#pragma unroll
    for (int v = 0; v < V; ++v) x.at[v] = (x.at[v] - moments.mean) * moments.inverse_deviation * g.at[v] + b.at[v];
    if (inside) store_floats<V>(x, out.output + i * width + j);
    if (threadIdx.x == 0) {
      out.mean[i] = moments.mean;
      out.inverse_deviation[i] = moments.inverse_deviation;
    }
  }
}

template <class D>
__global__ void layernorm_forward_kernel(Addends<D> in, const D* gain, const D* bias, std::int64_t rows,
                                         std::int64_t width, Normalized<D> out) {
  float* row = comm::dynamic_shared<float>();
  __shared__ float sums[kMostWarps];
  __shared__ float squares[kMostWarps];
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      row[j] = sum_at<D, 1>(in, i * width, j).at[0];
      if (out.residual_after != nullptr) out.residual_after[i * width + j] = from_float<D>(row[j]);
    }
    const auto own = [row, width](const auto& use) {
      for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) use(row[j]);
    };
    const RowMoments moments = row_moments(own, width, sums, squares);
    for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      const float n = (row[j] - moments.mean) * moments.inverse_deviation;
      out.output[i * width + j] = from_float<D>(n * as_float(gain[j]) + as_float(bias[j]));
    }
    if (threadIdx.x == 0) {
      out.mean[i] = moments.mean;
      out.inverse_deviation[i] = moments.inverse_deviation;
    }
  }
}

template <class D>
__global__ void add_branch_kernel(Addends<D> in, std::int64_t rows, std::int64_t width, D* residual_after) {
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      residual_after[i * width + j] = from_float<D>(sum_at<D, 1>(in, i * width, j).at[0]);
    }
  }
}

std::string shape_text(const char* operation, std::int64_t rows, std::int64_t width) {
  return std::string(operation) + ": [" + std::to_string(rows) + ", " + std::to_string(width) +
         "]: a range does not fit";
}

template <class E>
void launch_forward(const char* operation, const Addends<DeviceElement<E>>& in, comm::DeviceSpan<const E> gain,
                    comm::DeviceSpan<const E> bias, std::int64_t rows, std::int64_t width,
                    const Normalized<DeviceElement<E>>& out, comm::Stream& stream) {
  using D = DeviceElement<E>;
  constexpr int kVector = kPackElems<D>;
  if (width <= kVector * static_cast<std::int64_t>(kMostThreads) &&
      rows_of_packs<D>(width, in.residual, in.branch, in.branch_bias, gain.data(), bias.data(), out.residual_after,
                       out.output)) {
    comm::LaunchShape shape = block_per_row(rows, width / kVector, kMostThreads);
    shape.blocks = std::min(shape.blocks, kMostRowBlocks);
    comm::launch(operation, layernorm_forward_packs_kernel<D, kVector>, shape, stream, in, device_elems(gain),
                 device_elems(bias), rows, width, out);
    return;
  }
  comm::LaunchShape shape = block_per_row(rows, width);
  shape.shared_bytes = static_cast<std::size_t>(width) * sizeof(float);
  DROPTEST_CHECK(shape.shared_bytes <= kMostSharedBytes, std::string(operation) + ": rows of " + std::to_string(width) +
                                                             " elements, want at most " +
                                                             std::to_string(kMostSharedBytes / sizeof(float)));
  comm::launch(operation, layernorm_forward_kernel<D>, shape, stream, in, device_elems(gain), device_elems(bias), rows,
               width, out);
}

}  // namespace

template <class E>
void layernorm_forward(comm::DeviceSpan<const E> input, comm::DeviceSpan<const E> gain, comm::DeviceSpan<const E> bias,
                       std::int64_t rows, std::int64_t width, comm::DeviceSpan<E> output, comm::DeviceSpan<float> mean,
                       comm::DeviceSpan<float> inverse_deviation, comm::Stream& stream) {
  const auto count = static_cast<std::size_t>(rows * width);
  DROPTEST_CHECK(rows >= 0 && width >= 0 && input.size() >= count && output.size() >= count &&
                     gain.size() == static_cast<std::size_t>(width) && bias.size() == gain.size() &&
                     mean.size() >= static_cast<std::size_t>(rows) &&
                     inverse_deviation.size() >= static_cast<std::size_t>(rows),
                 shape_text("layernorm_forward", rows, width));
  launch_forward<E>("layernorm_forward", {device_elems(input), nullptr, nullptr}, gain, bias, rows, width,
                    {nullptr, device_elems(output), mean.data(), inverse_deviation.data()}, stream);
}

template <class E>
void residual_layernorm_forward(comm::DeviceSpan<const E> residual, comm::DeviceSpan<const E> branch,
                                comm::DeviceSpan<const E> branch_bias, comm::DeviceSpan<const E> gain,
                                comm::DeviceSpan<const E> bias, std::int64_t rows, std::int64_t width,
                                comm::DeviceSpan<E> residual_after, comm::DeviceSpan<E> output,
                                comm::DeviceSpan<float> mean, comm::DeviceSpan<float> inverse_deviation,
                                comm::Stream& stream) {
  const auto count = static_cast<std::size_t>(rows * width);
  DROPTEST_CHECK(
      rows >= 0 && width >= 0 && residual.size() >= count && branch.size() >= count && residual_after.size() >= count &&
          output.size() >= count && gain.size() == static_cast<std::size_t>(width) && bias.size() == gain.size() &&
          (branch_bias.empty() || branch_bias.size() == gain.size()) && mean.size() >= static_cast<std::size_t>(rows) &&
          inverse_deviation.size() >= static_cast<std::size_t>(rows),
      shape_text("residual_layernorm_forward", rows, width));
  launch_forward<E>(
      "residual_layernorm_forward",
      {device_elems(residual), device_elems(branch), branch_bias.empty() ? nullptr : device_elems(branch_bias)}, gain,
      bias, rows, width, {device_elems(residual_after), device_elems(output), mean.data(), inverse_deviation.data()},
      stream);
}

template <class E>
void add_branch(comm::DeviceSpan<const E> residual, comm::DeviceSpan<const E> branch,
                comm::DeviceSpan<const E> branch_bias, std::int64_t rows, std::int64_t width,
                comm::DeviceSpan<E> residual_after, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const auto count = static_cast<std::size_t>(rows * width);
  DROPTEST_CHECK(rows >= 0 && width >= 0 && residual.size() >= count && branch.size() >= count &&
                     residual_after.size() >= count && branch_bias.size() == static_cast<std::size_t>(width),
                 shape_text("add_branch", rows, width));
  const Addends<D> addends{device_elems(residual), device_elems(branch), device_elems(branch_bias)};
  comm::launch("add_branch", add_branch_kernel<D>, block_per_row(rows, width), stream, addends, rows, width,
               device_elems(residual_after));
}

template void layernorm_forward<float>(comm::DeviceSpan<const float>, comm::DeviceSpan<const float>,
                                       comm::DeviceSpan<const float>, std::int64_t, std::int64_t,
                                       comm::DeviceSpan<float>, comm::DeviceSpan<float>, comm::DeviceSpan<float>,
                                       comm::Stream&);
template void layernorm_forward<Bf16>(comm::DeviceSpan<const Bf16>, comm::DeviceSpan<const Bf16>,
                                      comm::DeviceSpan<const Bf16>, std::int64_t, std::int64_t, comm::DeviceSpan<Bf16>,
                                      comm::DeviceSpan<float>, comm::DeviceSpan<float>, comm::Stream&);
template void residual_layernorm_forward<float>(comm::DeviceSpan<const float>, comm::DeviceSpan<const float>,
                                                comm::DeviceSpan<const float>, comm::DeviceSpan<const float>,
                                                comm::DeviceSpan<const float>, std::int64_t, std::int64_t,
                                                comm::DeviceSpan<float>, comm::DeviceSpan<float>,
                                                comm::DeviceSpan<float>, comm::DeviceSpan<float>, comm::Stream&);
template void residual_layernorm_forward<Bf16>(comm::DeviceSpan<const Bf16>, comm::DeviceSpan<const Bf16>,
                                               comm::DeviceSpan<const Bf16>, comm::DeviceSpan<const Bf16>,
                                               comm::DeviceSpan<const Bf16>, std::int64_t, std::int64_t,
                                               comm::DeviceSpan<Bf16>, comm::DeviceSpan<Bf16>, comm::DeviceSpan<float>,
                                               comm::DeviceSpan<float>, comm::Stream&);

template void add_branch<float>(comm::DeviceSpan<const float>, comm::DeviceSpan<const float>,
                                comm::DeviceSpan<const float>, std::int64_t, std::int64_t, comm::DeviceSpan<float>,
                                comm::Stream&);
template void add_branch<Bf16>(comm::DeviceSpan<const Bf16>, comm::DeviceSpan<const Bf16>, comm::DeviceSpan<const Bf16>,
                               std::int64_t, std::int64_t, comm::DeviceSpan<Bf16>, comm::Stream&);

}  // namespace droptest::models
