// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <type_traits>

#include "models/kernels/block_reduction.cuh"
#include "models/kernels/dropout_draws.cuh"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/layernorm.h"
#include "models/kernels/narrow_floats.h"

namespace droptest::models {
namespace {

// A block processes one row at a time. If a row is at most one pack of 16 bytes for each thread, it is in registers.
// Otherwise it is in shared memory; each thread has the same columns in every pass, so that no other thread reads its
// part.
constexpr std::uint64_t kMostRowBlocks = 4096;  // with more rows, a block loads gain and bias for several rows

/// The addends of the residual stream.
template <class D>
struct Addends {
  const D* residual;
  const D* branch;  ///< null: there is no branch
  const D* branch_bias;
};

/// The results of the normalisation.
template <class D>
struct Normalized {
  D* residual_after;  ///< null: the sum is not stored, because it is the residual
  D* output;
  float* mean;
  float* inverse_deviation;
};

/// `drawn`: the row's dropout of the branch and its bias.
template <class D, int V, class Row>
__device__ Floats<V> sum_at(const Addends<D>& in, Row& drawn, std::int64_t row_start, std::int64_t j) {
  Floats<V> x = load_floats<V>(in.residual + row_start + j);
  if (in.branch == nullptr) return x;
  const Floats<V> branch = load_floats<V>(in.branch + row_start + j);
  const Floats<V> bias = load_floats<V>(in.branch_bias + j);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    x.at[v] = rounded_to<D>(x.at[v] + drawn.factor(j + v) * (branch.at[v] + bias.at[v]));
  }
  return x;
}

/// The mean of the row, and the inverse of its deviation.
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
template <class D, int V, class Draws>
__global__ void layernorm_forward_packs_kernel(Addends<D> in, Draws draws, const D* gain, const D* bias,
                                               std::int64_t rows, std::int64_t width, Normalized<D> out) {
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
    typename Draws::Row drawn = draws.row(i);
    Floats<V> x = {};
    if (inside) x = sum_at<D, V>(in, drawn, i * width, j);
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

template <class D, class Draws>
__global__ void layernorm_forward_kernel(Addends<D> in, Draws draws, const D* gain, const D* bias, std::int64_t rows,
                                         std::int64_t width, Normalized<D> out) {
  float* row = comm::dynamic_shared<float>();
  __shared__ float sums[kMostWarps];
  __shared__ float squares[kMostWarps];
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    typename Draws::Row drawn = draws.row(i);
    for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      row[j] = sum_at<D, 1>(in, drawn, i * width, j).at[0];
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

template <class D, class Draws>
__global__ void add_branch_kernel(Addends<D> in, Draws draws, std::int64_t rows, std::int64_t width,
                                  D* residual_after) {
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    typename Draws::Row drawn = draws.row(i);
    for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      residual_after[i * width + j] = from_float<D>(sum_at<D, 1>(in, drawn, i * width, j).at[0]);
    }
  }
}

void check_branch(const char* operation, const NormForward& n) {
  const std::int64_t count = n.rows * n.width;
  DROPTEST_CHECK(
      n.rows >= 0 && n.width >= 0 && have(count, {n.residual}) &&
          (n.branch.bytes.empty() || (have(count, {n.branch, n.residual_after}) && have(n.width, {n.branch_bias}))),
      std::string(operation) + ": [" + std::to_string(n.rows) + ", " + std::to_string(n.width) +
          "]: a tensor does not fit");
}

template <class E>
Addends<DeviceElement<E>> addends_of(const NormForward& n) {
  return {device_elems<E>(n.residual), device_elems<E>(n.branch), device_elems<E>(n.branch_bias)};
}

}  // namespace

template <class E>
void layernorm_forward(const NormForward& n, comm::Stream& stream) {
  using D = DeviceElement<E>;
  constexpr const char* kName = "layernorm_forward";
  constexpr int kVector = kPackElems<D>;
  check_branch(kName, n);
  DROPTEST_CHECK(
      have(n.rows * n.width, {n.output}) && have(n.width, {n.gain, n.bias}) &&
          have(n.rows, {n.mean, n.inverse_deviation}),
      "layernorm_forward: [" + std::to_string(n.rows) + ", " + std::to_string(n.width) + "]: a tensor does not fit");
  const Addends<D> in = addends_of<E>(n);
  const D* gain = device_elems<E>(n.gain);
  const D* bias = device_elems<E>(n.bias);
  const Normalized<D> out{in.branch == nullptr ? nullptr : device_elems<E>(n.residual_after), device_elems<E>(n.output),
                          device_elems<float>(n.mean), device_elems<float>(n.inverse_deviation)};
  with_draws(n.dropout, [&](const auto& draws) {
    using Draws = std::decay_t<decltype(draws)>;
    if (n.width <= kVector * static_cast<std::int64_t>(kMostRowThreads) &&
        rows_of_packs<D>(n.width, in.residual, in.branch, in.branch_bias, gain, bias, out.residual_after, out.output)) {
      comm::LaunchShape shape = block_per_row(n.rows, n.width / kVector, kMostRowThreads);
      shape.blocks = std::min(shape.blocks, kMostRowBlocks);
      comm::launch(kName, layernorm_forward_packs_kernel<D, kVector, Draws>, shape, stream, in, draws, gain, bias,
                   n.rows, n.width, out);
      return;
    }
    comm::LaunchShape shape = block_per_row(n.rows, n.width);
    shape.shared_bytes = static_cast<std::size_t>(n.width) * sizeof(float);
    DROPTEST_CHECK(shape.shared_bytes <= kMostRowBytes, "layernorm_forward: rows of " + std::to_string(n.width) +
                                                            " elements, want at most " +
                                                            std::to_string(kMostRowBytes / sizeof(float)));
    comm::launch(kName, layernorm_forward_kernel<D, Draws>, shape, stream, in, draws, gain, bias, n.rows, n.width, out);
  });
}

template <class E>
void add_branch(const NormForward& n, comm::Stream& stream) {
  check_branch("add_branch", n);
  with_draws(n.dropout, [&](const auto& draws) {
    comm::launch("add_branch", add_branch_kernel<DeviceElement<E>, std::decay_t<decltype(draws)>>,
                 block_per_row(n.rows, n.width), stream, addends_of<E>(n), draws, n.rows, n.width,
                 device_elems<E>(n.residual_after));
  });
}

#define DROPTEST_LAYERNORM(E)                                            \
  template void layernorm_forward<E>(const NormForward&, comm::Stream&); \
  template void add_branch<E>(const NormForward&, comm::Stream&);
DROPTEST_LAYERNORM(float)
DROPTEST_LAYERNORM(Bf16)
DROPTEST_LAYERNORM(Fp16)
#undef DROPTEST_LAYERNORM

}  // namespace droptest::models
