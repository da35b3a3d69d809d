// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "models/kernels/bf16.h"
#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/layernorm.h"

namespace droptest::models {
namespace {

// A block has a row at a time, of which each thread has the same columns in every pass, so that what a thread leaves in
// shared memory is read by no other.
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

template <class D, int V>
__global__ void layernorm_forward_kernel(Addends<D> in, const D* gain, const D* bias, std::int64_t rows,
                                         std::int64_t width, Normalized<D> out) {
  float* row = comm::dynamic_shared<float>();
  __shared__ float sums[kMostWarps];
  __shared__ float squares[kMostWarps];
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    float own = 0;
    for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
      const Floats<V> x = sum_at<D, V>(in, i * width, j);
#pragma unroll
      for (int v = 0; v < V; ++v) own += x.at[v];
      store_floats<V>(x, row + j);
      if (out.residual_after != nullptr) store_floats<V>(x, out.residual_after + i * width + j);
    }
    const float mean = block_sum(own, sums) / static_cast<float>(width);
    own = 0;
    for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
#pragma unroll
      for (int v = 0; v < V; ++v) own += (row[j + v] - mean) * (row[j + v] - mean);
    }
    const float variance = block_sum(own, squares) / static_cast<float>(width);
    const float inverse_deviation = 1.0F / sqrtf(variance + static_cast<float>(kLayerNormEpsilon));
    for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
      Floats<V> x = load_floats<V>(row + j);
      const Floats<V> g = load_floats<V>(gain + j);
      const Floats<V> b = load_floats<V>(bias + j);
#pragma unroll
      for (int v = 0; v < V; ++v) x.at[v] = (x.at[v] - mean) * inverse_deviation * g.at[v] + b.at[v];
      store_floats<V>(x, out.output + i * width + j);
    }
    if (threadIdx.x == 0) {
      out.mean[i] = mean;
      out.inverse_deviation[i] = inverse_deviation;
    }
  }
}

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
/// width]: the block's part of the gradients of gain, bias and, with three parts, the branch's bias.
template <class D, int V>
__global__ void layernorm_backward_kernel(Kept<D> in, std::int64_t rows, std::int64_t width, const D* grad_residual,
                                          D* grad_input, int parts, float* partial) {
  float* gain_sums = comm::dynamic_shared<float>();
  float* bias_sums = gain_sums + width;
  float* branch_sums = bias_sums + width;
  __shared__ float sums_of_d[kMostWarps];
  __shared__ float sums_of_dn[kMostWarps];
  for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
    for (int v = 0; v < V; ++v) {
      for (int part = 0; part < parts; ++part) gain_sums[part * width + j + v] = 0;
    }
  }
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    const float m = in.mean[i];
    const float r = in.inverse_deviation[i];
    float own_d = 0;
    float own_dn = 0;
    for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
      const Floats<V> dy = load_floats<V>(in.grad_output + i * width + j);
      const Floats<V> x = load_floats<V>(in.input + i * width + j);
      const Floats<V> g = load_floats<V>(in.gain + j);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float n = (x.at[v] - m) * r;
        own_d += dy.at[v] * g.at[v];
        own_dn += dy.at[v] * g.at[v] * n;
        gain_sums[j + v] += dy.at[v] * n;
        bias_sums[j + v] += dy.at[v];
      }
    }
    const float mean_d = block_sum(own_d, sums_of_d) / static_cast<float>(width);
    const float mean_dn = block_sum(own_dn, sums_of_dn) / static_cast<float>(width);
    for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
      const Floats<V> dy = load_floats<V>(in.grad_output + i * width + j);
      const Floats<V> x = load_floats<V>(in.input + i * width + j);
      const Floats<V> g = load_floats<V>(in.gain + j);
      Floats<V> dx = {};
      if (grad_residual != nullptr) dx = load_floats<V>(grad_residual + i * width + j);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        dx.at[v] += r * (dy.at[v] * g.at[v] - mean_d - (x.at[v] - m) * r * mean_dn);
        if (parts == 3) branch_sums[j + v] += rounded_to<D>(dx.at[v]);
      }
      store_floats<V>(dx, grad_input + i * width + j);
    }
  }
  for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
    for (int part = 0; part < parts; ++part) {
      store_floats<V>(load_floats<V>(gain_sums + part * width + j), partial + (blockIdx.x * parts + part) * width + j);
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

std::string shape_text(const char* operation, std::int64_t rows, std::int64_t width) {
  return std::string(operation) + ": [" + std::to_string(rows) + ", " + std::to_string(width) +
         "]: a range does not fit";
}

void check_width(const char* operation, std::int64_t floats) {
  DROPTEST_CHECK(static_cast<std::size_t>(floats) * sizeof(float) <= kMostSharedBytes,
                 std::string(operation) + ": rows take " + std::to_string(floats) + " floats of shared memory, want " +
                     std::to_string(kMostSharedBytes / sizeof(float)) + " at most");
}

template <class E>
void launch_forward(const char* operation, const Addends<DeviceElement<E>>& in, comm::DeviceSpan<const E> gain,
                    comm::DeviceSpan<const E> bias, std::int64_t rows, std::int64_t width,
                    const Normalized<DeviceElement<E>>& out, comm::Stream& stream) {
  using D = DeviceElement<E>;
  check_width(operation, width);
  const bool packs = rows_of_packs<D>(width, in.residual, in.branch, in.branch_bias, gain.data(), bias.data(),
                                      out.residual_after, out.output);
  comm::LaunchShape shape = block_per_row(rows, width / (packs ? kPackElems<D> : 1));
  shape.shared_bytes = static_cast<std::size_t>(width) * sizeof(float);
  comm::launch(operation, packs ? layernorm_forward_kernel<D, kPackElems<D>> : layernorm_forward_kernel<D, 1>, shape,
               stream, in, device_elems(gain), device_elems(bias), rows, width, out);
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
  DROPTEST_CHECK(rows >= 0 && width >= 0 && grad_output.size() >= count && input.size() >= count &&
                     gain.size() == static_cast<std::size_t>(width) && mean.size() >= static_cast<std::size_t>(rows) &&
                     inverse_deviation.size() >= static_cast<std::size_t>(rows) &&
                     (grad_residual.empty() || grad_residual.size() >= count) && grad_input.size() >= count &&
                     gradients.gain.size() == gain.size() && gradients.bias.size() == gain.size() &&
                     (gradients.branch_bias.empty() || gradients.branch_bias.size() == gain.size()) &&
                     scratch.size() >= layernorm_scratch_elems(rows, width),
                 shape_text("layernorm_backward", rows, width));
  const int parts = gradients.branch_bias.empty() ? 2 : 3;
  check_width("layernorm_backward", parts * width);
  const Kept<D> kept{device_elems(grad_output), device_elems(input), device_elems(gain), mean.data(),
                     inverse_deviation.data()};
  const D* residual = grad_residual.empty() ? nullptr : device_elems(grad_residual);
  const bool packs =
      rows_of_packs<D>(width, kept.grad_output, kept.input, kept.gain, residual, grad_input.data(), scratch.data());
  comm::LaunchShape shape = block_per_row(rows, width / (packs ? kPackElems<D> : 1));
  if (width > 0) shape.blocks = static_cast<std::uint64_t>(partial_rows(rows));
  shape.shared_bytes = static_cast<std::size_t>(parts * width) * sizeof(float);
  comm::launch("layernorm_backward",
               packs ? layernorm_backward_kernel<D, kPackElems<D>> : layernorm_backward_kernel<D, 1>, shape, stream,
               kept, rows, width, residual, device_elems(grad_input), parts, scratch.data());
  const auto tiles = static_cast<std::uint64_t>((parts * width + kWarp - 1) / kWarp);
  comm::launch("layernorm_backward", parameter_gradients_kernel, {std::min(tiles, kMostBlocks), kRowLanes * kWarp, 0},
               stream, scratch.data(), partial_rows(rows), width, parts, gradients.mode == GradientMode::kAdd ? 1 : 0,
               GradientsOfParts{{gradients.gain.data(), gradients.bias.data(), gradients.branch_bias.data()}});
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

}  // namespace droptest::models
