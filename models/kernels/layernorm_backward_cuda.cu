// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "models/kernels/bf16.h"
#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/layernorm.h"

namespace droptest::models {
namespace {

// Rows and threads are as in the forward pass. A block adds up its rows' part of the parameters' gradients; then the
// blocks' parts are added up.
constexpr unsigned kMostThreads = 512;
constexpr std::size_t kMostSharedBytes = 96U * 1024U;

/// What the gradient is computed from.
template <class D>
struct Kept {
  const D* grad_output;
  const D* input;
  const D* gain;
  const float* mean;
  const float* inverse_deviation;
};

constexpr std::int64_t kMostPartialRows = 1024;

/// Blocks of the backward pass, each of which leaves one row of partial sums.
std::int64_t partial_rows(std::int64_t rows) { return std::min(rows, kMostPartialRows); }

/// With n = (x - mean) r and d = grad_output x gain: grad_x = r (d - mean(d) - n mean(d n)). partial [blocks, parts,
/// width]: the block's part of the gradients of gain, bias and, with three parts, the branch's bias. One pack for each
/// thread.
template <class D, int V>
__global__ void layernorm_backward_packs_kernel(Kept<D> in, std::int64_t rows, std::int64_t width,
                                                const D* grad_residual, D* grad_input, int parts, float* partial) {
  __shared__ float sums_of_d[kMostWarps];
  __shared__ float sums_of_dn[kMostWarps];
  const std::int64_t j = threadIdx.x * V;
  const bool inside = j < width;
  Floats<V> gain = {};
  if (inside) gain = load_floats<V>(in.gain + j);
  Floats<V> gain_sums = {};
  Floats<V> bias_sums = {};
  Floats<V> branch_sums = {};
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    Floats<V> dx = {};
    Floats<V> dy = {};
    Floats<V> n = {};
    const float r = in.inverse_deviation[i];
    if (inside) {
      if (grad_residual != nullptr) dx = load_floats<V>(grad_residual + i * width + j);
      dy = load_floats<V>(in.grad_output + i * width + j);
      n = load_floats<V>(in.input + i * width + j);
    }
    float own_d = 0;
    float own_dn = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      n.at[v] = (n.at[v] - in.mean[i]) * r;
      own_d += dy.at[v] * gain.at[v];
      own_dn += dy.at[v] * gain.at[v] * n.at[v];
    }
    const float mean_d = block_sum(own_d, sums_of_d) / static_cast<float>(width);
    const float mean_dn = block_sum(own_dn, sums_of_dn) / static_cast<float>(width);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      dx.at[v] += r * (dy.at[v] * gain.at[v] - mean_d - n.at[v] * mean_dn);
      gain_sums.at[v] += dy.at[v] * n.at[v];
      bias_sums.at[v] += dy.at[v];
      branch_sums.at[v] += rounded_to<D>(dx.at[v]);
    }
    if (inside) store_floats<V>(dx, grad_input + i * width + j);
  }
  if (!inside) return;
  float* own_partial = partial + blockIdx.x * parts * width + j;
  store_floats<V>(gain_sums, own_partial);
  store_floats<V>(bias_sums, own_partial + width);
  if (parts == 3) store_floats<V>(branch_sums, own_partial + 2 * width);
}

/// The same for rows of any width. The block's part of the sums, too, is in shared memory.
template <class D>
__global__ void layernorm_backward_kernel(Kept<D> in, std::int64_t rows, std::int64_t width, const D* grad_residual,
                                          D* grad_input, int parts, float* partial) {
  float* gain_sums = comm::dynamic_shared<float>();
  float* bias_sums = gain_sums + width;
  float* branch_sums = bias_sums + width;
  __shared__ float sums_of_d[kMostWarps];
  __shared__ float sums_of_dn[kMostWarps];
  for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
    for (int part = 0; part < parts; ++part) gain_sums[part * width + j] = 0;
  }
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
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
    const float mean_d = block_sum(own_d, sums_of_d) / static_cast<float>(width);
    const float mean_dn = block_sum(own_dn, sums_of_dn) / static_cast<float>(width);
    for (std::int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      const float d = as_float(in.grad_output[i * width + j]) * as_float(in.gain[j]);
      const float n = (as_float(in.input[i * width + j]) - m) * r;
      const float residual = grad_residual == nullptr ? 0.0F : as_float(grad_residual[i * width + j]);
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

/// sums[j] = the sum over rows of values[row, j], or +=, in the order of the two kernels above: each of `partials`
/// takes the rows partial, partial + partials, ...; then parameter_gradients_kernel's row lanes take the partials.
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

template <class D>
void launch_rows(const Kept<D>& kept, std::int64_t rows, std::int64_t width, const D* grad_residual, D* grad_input,
                 int parts, float* partial, comm::Stream& stream) {
  constexpr int kVector = kPackElems<D>;
  const bool packs =
      width <= kVector * static_cast<std::int64_t>(kMostThreads) &&
      rows_of_packs<D>(width, kept.grad_output, kept.input, kept.gain, grad_residual, grad_input, partial);
  comm::LaunchShape shape = packs ? block_per_row(rows, width / kVector, kMostThreads) : block_per_row(rows, width);
  shape.blocks = std::min(shape.blocks, static_cast<std::uint64_t>(partial_rows(rows)));
  if (!packs) shape.shared_bytes = static_cast<std::size_t>(parts * width) * sizeof(float);
  DROPTEST_CHECK(shape.shared_bytes <= kMostSharedBytes, "layernorm_backward: rows of " + std::to_string(width) +
                                                             " elements, want at most " +
                                                             std::to_string(kMostSharedBytes / sizeof(float) / 3));
  comm::launch("layernorm_backward", packs ? layernorm_backward_packs_kernel<D, kVector> : layernorm_backward_kernel<D>,
               shape, stream, kept, rows, width, grad_residual, grad_input, parts, partial);
}

}  // namespace

std::uint64_t layernorm_scratch_elems(std::int64_t rows, std::int64_t width) {
  return static_cast<std::uint64_t>(partial_rows(rows) * 3 * width);
}

template <class E>
void layernorm_backward(comm::DeviceSpan<const E> grad_output, comm::DeviceSpan<const E> input,
                        comm::DeviceSpan<const E> gain, comm::DeviceSpan<const float> mean,
                        comm::DeviceSpan<const float> inverse_deviation, std::int64_t rows, std::int64_t width,
                        comm::DeviceSpan<const E> grad_residual, comm::DeviceSpan<E> grad_input,
                        const LayerNormGradients& gradients, comm::DeviceSpan<float> scratch, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const auto count = static_cast<std::size_t>(rows * width);
  DROPTEST_CHECK(
      rows >= 0 && width >= 0 && grad_output.size() >= count && input.size() >= count &&
          gain.size() == static_cast<std::size_t>(width) && mean.size() >= static_cast<std::size_t>(rows) &&
          inverse_deviation.size() >= static_cast<std::size_t>(rows) &&
          (grad_residual.empty() || grad_residual.size() >= count) && grad_input.size() >= count &&
          gradients.gain.size() == gain.size() && gradients.bias.size() == gain.size() &&
          (gradients.branch_bias.empty() || gradients.branch_bias.size() == gain.size()) &&
          scratch.size() >= layernorm_scratch_elems(rows, width),
      "layernorm_backward: [" + std::to_string(rows) + ", " + std::to_string(width) + "]: a range does not fit");
  const int parts = gradients.branch_bias.empty() ? 2 : 3;
  launch_rows<D>(
      {device_elems(grad_output), device_elems(input), device_elems(gain), mean.data(), inverse_deviation.data()}, rows,
      width, grad_residual.empty() ? nullptr : device_elems(grad_residual), device_elems(grad_input), parts,
      scratch.data(), stream);
  const auto tiles = static_cast<std::uint64_t>((parts * width + kWarp - 1) / kWarp);
  comm::launch("layernorm_backward", parameter_gradients_kernel, {std::min(tiles, kMostBlocks), kRowLanes * kWarp, 0},
               stream, scratch.data(), partial_rows(rows), width, parts, gradients.mode == GradientMode::kAdd ? 1 : 0,
               GradientsOfParts{{gradients.gain.data(), gradients.bias.data(), gradients.branch_bias.data()}});
}

template <class E>
void branch_bias_gradient(comm::DeviceSpan<const E> grad_input, std::int64_t rows, std::int64_t width,
                          GradientMode mode, comm::DeviceSpan<float> branch_bias, comm::Stream& stream) {
  DROPTEST_CHECK(
      rows >= 0 && width >= 0 && grad_input.size() >= static_cast<std::size_t>(rows * width) &&
          branch_bias.size() == static_cast<std::size_t>(width),
      "branch_bias_gradient: [" + std::to_string(rows) + ", " + std::to_string(width) + "]: a range does not fit");
  const auto tiles = static_cast<std::uint64_t>((width + kWarp - 1) / kWarp);
  comm::launch("branch_bias_gradient", branch_bias_gradient_kernel<DeviceElement<E>>,
               {std::min(tiles, kMostBlocks), kRowLanes * kWarp, 0}, stream, device_elems(grad_input), rows,
               partial_rows(rows), width, mode == GradientMode::kAdd ? 1 : 0, branch_bias.data());
}

template void layernorm_backward<float>(comm::DeviceSpan<const float>, comm::DeviceSpan<const float>,
                                        comm::DeviceSpan<const float>, comm::DeviceSpan<const float>,
                                        comm::DeviceSpan<const float>, std::int64_t, std::int64_t,
                                        comm::DeviceSpan<const float>, comm::DeviceSpan<float>,
                                        const LayerNormGradients&, comm::DeviceSpan<float>, comm::Stream&);
template void layernorm_backward<Bf16>(comm::DeviceSpan<const Bf16>, comm::DeviceSpan<const Bf16>,
                                       comm::DeviceSpan<const Bf16>, comm::DeviceSpan<const float>,
                                       comm::DeviceSpan<const float>, std::int64_t, std::int64_t,
                                       comm::DeviceSpan<const Bf16>, comm::DeviceSpan<Bf16>, const LayerNormGradients&,
                                       comm::DeviceSpan<float>, comm::Stream&);

template void branch_bias_gradient<float>(comm::DeviceSpan<const float>, std::int64_t, std::int64_t, GradientMode,
                                          comm::DeviceSpan<float>, comm::Stream&);
template void branch_bias_gradient<Bf16>(comm::DeviceSpan<const Bf16>, std::int64_t, std::int64_t, GradientMode,
                                         comm::DeviceSpan<float>, comm::Stream&);

}  // namespace droptest::models
