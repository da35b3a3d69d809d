// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/layernorm.h"
#include "models/kernels/narrow_floats.h"

namespace droptest::models {
namespace {

// Rows and threads are as in the forward pass. A block adds up its rows' part of the parameters' gradients; then the
// blocks' parts are added up.

/// The inputs of the gradient.
template <class D>
struct BackwardInputs {
  const D* grad_output;
  const D* input;
  const D* gain;
  const float* mean;
  const float* inverse_deviation;
};

constexpr std::int64_t kMostPartialRows = 1024;

/// The number of blocks of the backward pass; each writes one row of partial sums.
std::int64_t partial_rows(std::int64_t rows) { return std::min(rows, kMostPartialRows); }

/// A thread's pack of each tensor of a row.
template <class D, int V>
struct RowPacks {
  Pack<D, V> grad_before;
  Pack<D, V> grad_output;
  Pack<D, V> input;
  float mean;
  float inverse_deviation;
};

/// A thread outside the row gets zeros; without `grad_before`, that pack is zeros.
template <class D, int V>
__device__ RowPacks<D, V> load_row(const BackwardInputs<D>& in, const D* grad_before, std::int64_t row,
                                   std::int64_t width, std::int64_t column) {
  RowPacks<D, V> packs = {};
  packs.mean = in.mean[row];
  packs.inverse_deviation = in.inverse_deviation[row];
  if (column < width) {
    const std::int64_t at = row * width + column;
    if (grad_before != nullptr) packs.grad_before = *reinterpret_cast<const Pack<D, V>*>(grad_before + at);
    packs.grad_output = *reinterpret_cast<const Pack<D, V>*>(in.grad_output + at);
    packs.input = *reinterpret_cast<const Pack<D, V>*>(in.input + at);
  }
  return packs;
}

/// grad_x = r (d - mean(d) - n mean(d n)) with n = (x - mean) r and d = grad_output x gain. partial [blocks, parts,
/// width] gets the block's part of the gradients of gain, bias and, if there are three parts, the branch's bias. Each
/// thread has one pack of a row, and loads the pack of its next row before it waits for the sums of this row.
template <class D, int V>
__global__ void layernorm_backward_packs_kernel(BackwardInputs<D> in, std::int64_t rows, std::int64_t width,
                                                const D* grad_before, D* grad_input, int parts, float* partial) {
  __shared__ float sums_of_warps[2][2][kMostWarps];  // threads may still read the sums of the previous row
  const std::int64_t j = threadIdx.x * V;
  const bool inside = j < width;
  Floats<V> gain = {};
  if (inside) gain = load_floats<V>(in.gain + j);
  Floats<V> gain_sums = {};
  Floats<V> bias_sums = {};
  Floats<V> branch_sums = {};
  RowPacks<D, V> next = {};
  if (blockIdx.x < rows) next = load_row<D, V>(in, grad_before, blockIdx.x, width, j);
  unsigned parity = 0;
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x, parity ^= 1U) {
    const RowPacks<D, V> row = next;
    if (i + gridDim.x < rows) next = load_row<D, V>(in, grad_before, i + gridDim.x, width, j);
    const float r = row.inverse_deviation;
    const auto dy = [&row](int v) { return as_float(row.grad_output.elems[v]); };
    const auto n = [&row, r](int v) { return (as_float(row.input.elems[v]) - row.mean) * r; };
    float own_d = 0;
    float own_dn = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      own_d += dy(v) * gain.at[v];
      own_dn += dy(v) * gain.at[v] * n(v);
    }
    const TwoSums sums = block_sums(own_d, own_dn, sums_of_warps[parity]);
    const float mean_d = sums.first / static_cast<float>(width);
    const float mean_dn = sums.second / static_cast<float>(width);
    Pack<D, V> dx;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      dx.elems[v] =
          from_float<D>(as_float(row.grad_before.elems[v]) + r * (dy(v) * gain.at[v] - mean_d - n(v) * mean_dn));
      gain_sums.at[v] += dy(v) * n(v);
      bias_sums.at[v] += dy(v);
      branch_sums.at[v] += as_float(dx.elems[v]);
    }
    if (inside) *reinterpret_cast<Pack<D, V>*>(grad_input + i * width + j) = dx;
  }
  if (!inside) return;
  float* own_partial = partial + blockIdx.x * parts * width + j;
  store_floats<V>(gain_sums, own_partial);
  store_floats<V>(bias_sums, own_partial + width);
  if (parts == 3) store_floats<V>(branch_sums, own_partial + 2 * width);
}

/// The gradients of layernorm_backward_packs_kernel for rows that are not aligned or have more packs than a block has
/// threads. The block's partial sums are in shared memory, which bounds the width.
template <class D>
__global__ void layernorm_backward_kernel(BackwardInputs<D> in, std::int64_t rows, std::int64_t width,
                                          const D* grad_before, D* grad_input, int parts, float* partial) {
  float* gain_sums = comm::dynamic_shared<float>();
  float* bias_sums = gain_sums + width;
  float* branch_sums = bias_sums + width;
  __shared__ float sums_of_warps[2][2][kMostWarps];  // threads may still read the sums of the previous row
  unsigned parity = 0;
  for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
    for (int part = 0; part < parts; ++part) gain_sums[part * width + j] = 0;
  }
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x, parity ^= 1U) {
    const float m = in.mean[i];
    const float r = in.inverse_deviation[i];
    float own_d = 0;
    float own_dn = 0;
    for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      const float dy = as_float(in.grad_output[i * width + j]);
      const float d = dy * as_float(in.gain[j]);
      const float n = (as_float(in.input[i * width + j]) - m) * r;
      own_d += d;
      own_dn += d * n;
      gain_sums[j] += dy * n;
      bias_sums[j] += dy;
    }
    const TwoSums sums = block_sums(own_d, own_dn, sums_of_warps[parity]);
    const float mean_d = sums.first / static_cast<float>(width);
    const float mean_dn = sums.second / static_cast<float>(width);
    for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      const float d = as_float(in.grad_output[i * width + j]) * as_float(in.gain[j]);
      const float n = (as_float(in.input[i * width + j]) - m) * r;
      const float residual = grad_before == nullptr ? 0.0F : as_float(grad_before[i * width + j]);
      const D dx = from_float<D>(residual + r * (d - mean_d - n * mean_dn));
      grad_input[i * width + j] = dx;
      if (parts == 3) branch_sums[j] += as_float(dx);
    }
  }
  for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
    for (int part = 0; part < parts; ++part) {
      partial[(blockIdx.x * parts + part) * width + j] = gain_sums[part * width + j];
    }
  }
}

/// The three gradients by number.
struct GradientsOfParts {
  float* parts[3];
};

constexpr unsigned kRowLanes = 32;

/// gradients.parts[p][j] = the sum over rows of partial[row, p, j], or +=.
__global__ void parameter_gradients_kernel(const float* partial, std::int64_t rows, std::int64_t width, int parts,
                                           int adds, GradientsOfParts gradients) {
  __shared__ float sums[kRowLanes * (kWarp + 1)];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned row_lane = threadIdx.x / kWarp;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kWarp; first < parts * width;
       first += static_cast<std::int64_t>(gridDim.x) * kWarp) {
    const std::int64_t column = first + lane;
    float own = 0;
    for (std::int64_t i = row_lane; i < rows && column < parts * width; i += kRowLanes) {
      own += partial[i * parts * width + column];
    }
    sums[row_lane * (kWarp + 1) + lane] = own;
    __syncthreads();
    if (row_lane == 0 && column < parts * width) {
      float sum = 0;
      for (unsigned other = 0; other < kRowLanes; ++other) sum += sums[other * (kWarp + 1) + lane];
      float* out = gradients.parts[column / width] + column % width;
      *out = adds != 0 ? *out + sum : sum;
    }
    __syncthreads();
  }
}

/// result[j] = the sum over rows of values[row, j], or +=, in the order of the backward kernels: partial sum number
/// `partial` of `partials` has the rows partial, partial + partials, ...; the row lanes of parameter_gradients_kernel
/// then add up the partial sums.
template <class D>
__global__ void branch_bias_gradient_kernel(const D* values, std::int64_t rows, std::int64_t partials,
                                            std::int64_t width, int adds, float* result) {
  __shared__ float sums[kRowLanes * (kWarp + 1)];
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned row_lane = threadIdx.x / kWarp;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kWarp; first < width;
       first += static_cast<std::int64_t>(gridDim.x) * kWarp) {
    const std::int64_t column = first + lane;
    float own = 0;
    for (std::int64_t p = row_lane; p < partials && column < width; p += kRowLanes) {
      float partial = 0;
      for (std::int64_t i = p; i < rows; i += partials) partial += as_float(values[i * width + column]);
      own += partial;
    }
    sums[row_lane * (kWarp + 1) + lane] = own;
    __syncthreads();
    if (row_lane == 0 && column < width) {
      float sum = 0;
      for (unsigned other = 0; other < kRowLanes; ++other) sum += sums[other * (kWarp + 1) + lane];
      result[column] = adds != 0 ? result[column] + sum : sum;
    }
    __syncthreads();
  }
}

/// A tile of columns for each block.
comm::LaunchShape tiles_of(std::int64_t columns) {
  return {std::min(static_cast<std::uint64_t>((columns + kWarp - 1) / kWarp), kMostBlocks), kRowLanes * kWarp, 0};
}

}  // namespace

std::uint64_t layernorm_scratch_elems(std::int64_t rows, std::int64_t width) {
  return static_cast<std::uint64_t>(partial_rows(rows) * 3 * width);
}

template <class E>
void layernorm_backward(const NormBackward& n, comm::Stream& stream) {
  using D = DeviceElement<E>;
  constexpr const char* kName = "layernorm_backward";
  constexpr int kVector = kPackElems<D>;
  const std::int64_t count = n.rows * n.width;
  DROPTEST_CHECK(
      n.rows >= 0 && n.width >= 0 && have(count, {n.grad_output, n.residual_after, n.grad_residual}) &&
          have(n.width, {n.gain, n.grad_gain, n.grad_bias}) && have(n.rows, {n.mean, n.inverse_deviation}) &&
          (n.grad_before.bytes.empty() || have(count, {n.grad_before})) &&
          (n.grad_branch_bias.bytes.empty() || have(n.width, {n.grad_branch_bias})) &&
          have(static_cast<std::int64_t>(layernorm_scratch_elems(n.rows, n.width)), {n.scratch}),
      "layernorm_backward: [" + std::to_string(n.rows) + ", " + std::to_string(n.width) + "]: a tensor does not fit");
  const int parts = n.grad_branch_bias.bytes.empty() ? 2 : 3;
  const BackwardInputs<D> inputs{device_elems<E>(n.grad_output), device_elems<E>(n.residual_after),
                                 device_elems<E>(n.gain), device_elems<float>(n.mean),
                                 device_elems<float>(n.inverse_deviation)};
  const D* grad_before = device_elems<E>(n.grad_before);
  D* grad_residual = device_elems<E>(n.grad_residual);
  float* partial = device_elems<float>(n.scratch);
  const bool packs =
      n.width <= kVector * static_cast<std::int64_t>(kMostRowThreads) &&
      rows_of_packs<D>(n.width, inputs.grad_output, inputs.input, inputs.gain, grad_before, grad_residual, partial);
  comm::LaunchShape shape =
      packs ? block_per_row(n.rows, n.width / kVector, kMostRowThreads) : block_per_row(n.rows, n.width);
  shape.blocks = std::min(shape.blocks, static_cast<std::uint64_t>(partial_rows(n.rows)));
  if (!packs) shape.shared_bytes = static_cast<std::size_t>(parts * n.width) * sizeof(float);
  DROPTEST_CHECK(shape.shared_bytes <= kMostRowBytes, "layernorm_backward: rows of " + std::to_string(n.width) +
                                                          " elements, want at most " +
                                                          std::to_string(kMostRowBytes / sizeof(float) / parts));
  comm::launch(kName, packs ? layernorm_backward_packs_kernel<D, kVector> : layernorm_backward_kernel<D>, shape, stream,
               inputs, n.rows, n.width, grad_before, grad_residual, parts, partial);
  comm::launch(kName, parameter_gradients_kernel, tiles_of(parts * n.width), stream, partial, partial_rows(n.rows),
               n.width, parts, n.mode == GradientMode::kAdd ? 1 : 0,
               GradientsOfParts{{device_elems<float>(n.grad_gain), device_elems<float>(n.grad_bias),
                                 device_elems<float>(n.grad_branch_bias)}});
}

template <class E>
void branch_bias_gradient(const NormBackward& n, comm::Stream& stream) {
  DROPTEST_CHECK(
      n.rows >= 0 && have(n.rows * n.width, {n.grad_residual}) && have(n.width, {n.grad_branch_bias}),
      "branch_bias_gradient: [" + std::to_string(n.rows) + ", " + std::to_string(n.width) + "]: a tensor does not fit");
  comm::launch("branch_bias_gradient", branch_bias_gradient_kernel<DeviceElement<E>>, tiles_of(n.width), stream,
               device_elems<E>(comm::ConstTensor(n.grad_residual)), n.rows, partial_rows(n.rows), n.width,
               n.mode == GradientMode::kAdd ? 1 : 0, device_elems<float>(n.grad_branch_bias));
}

#define DROPTEST_LAYERNORM_BACKWARD(E)                                     \
  template void layernorm_backward<E>(const NormBackward&, comm::Stream&); \
  template void branch_bias_gradient<E>(const NormBackward&, comm::Stream&);
DROPTEST_LAYERNORM_BACKWARD(float)
DROPTEST_LAYERNORM_BACKWARD(Bf16)
DROPTEST_LAYERNORM_BACKWARD(Fp16)
#undef DROPTEST_LAYERNORM_BACKWARD

}  // namespace droptest::models
