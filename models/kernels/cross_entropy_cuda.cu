// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include "models/kernels/bf16.h"
#include "models/kernels/block_reduction.cuh"
#include "models/kernels/cross_entropy.h"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/ordered_sum.cuh"

namespace droptest::models {
namespace {

// A block has a row at a time. Where the rows' stride and the address allow packs of V, a row's elements before the
// last whole pack are taken as packs and the rest one by one.

constexpr unsigned kMostThreads = 512;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// A row that fits in here with the kernel's other shared memory is read from memory once; every device since sm_80
// has 99 KiB for a block.
constexpr std::size_t kMostCachedBytes = 99U * 1024U - 512U;

/// Calls use(element) for the thread's own elements of the row.
template <int V, class D, class Use>
__device__ void for_own_elems(const D* row, std::int64_t count, const Use& use) {
  const std::int64_t in_packs = count / V * V;
  for (std::int64_t j = threadIdx.x * V; j < in_packs; j += blockDim.x * V) {
    const Floats<V> x = load_floats<V>(row + j);
#pragma unroll
    for (int v = 0; v < V; ++v) use(x.at[v]);
  }
  for (std::int64_t j = in_packs + threadIdx.x; j < count; j += blockDim.x) use(as_float(row[j]));
}

template <int V, class D>
__device__ float row_max(const D* row, std::int64_t count, float* shared) {
  float own = kMinusInfinity;
  for_own_elems<V>(row, count, [&own](float x) { own = fmaxf(own, x); });
  return block_max(own, shared);
}

template <int V, class D>
__device__ float row_exponential_sum(const D* row, std::int64_t count, float largest, float* shared) {
  float own = 0;
  for_own_elems<V>(row, count, [&own, largest](float x) { own += expf(x - largest); });
  return block_sum(own, shared);
}

/// gradient[j] = factor x (exp(row[j] - largest) / sum - [j is the target]); 0 in the padding, and in a row that is
/// ignored.
template <int V, class D>
__device__ void write_gradient(const D* row, const LogitRows& shape, std::int32_t target_token, float largest,
                               float sum, float factor, D* gradient) {
  const std::int64_t target = target_token - shape.range.first;
  const std::int64_t count = target_token == kIgnoredTarget ? 0 : shape.range.count;
  const float inverse = 1.0F / sum;
  for (std::int64_t j = threadIdx.x * V; j < shape.stride; j += blockDim.x * V) {
    Floats<V> x = {};
    if (j < count) x = load_floats<V>(row + j);
    const int columns = static_cast<int>(count - j);
    const int at_target = static_cast<int>(target - j);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float p = expf(x.at[v] - largest) * inverse;
      x.at[v] = v < columns ? factor * (v == at_target ? p - 1.0F : p) : 0.0F;
    }
    store_floats<V>(x, gradient + j);
  }
}

template <class D, int V>
__global__ void row_maxima_kernel(const D* logits, LogitRows shape, float* largest) {
  __shared__ float shared[kMostWarps];
  for (std::int64_t i = blockIdx.x; i < shape.rows; i += gridDim.x) {
    const float top = row_max<V>(logits + i * shape.stride, shape.range.count, shared);
    if (threadIdx.x == 0) largest[i] = top;
    __syncthreads();
  }
}

template <class D, int V>
__global__ void exponential_sums_kernel(const D* logits, LogitRows shape, const std::int32_t* targets,
                                        const float* largest, float* sums, float* predicted) {
  __shared__ float shared[kMostWarps];
  for (std::int64_t i = blockIdx.x; i < shape.rows; i += gridDim.x) {
    const D* row = logits + i * shape.stride;
    const float sum = row_exponential_sum<V>(row, shape.range.count, largest[i], shared);
    if (threadIdx.x == 0) {
      const std::int64_t target = targets[i] - shape.range.first;
      sums[i] = sum;
      predicted[i] = target >= 0 && target < shape.range.count ? as_float(row[target]) - largest[i] : 0.0F;
    }
    __syncthreads();
  }
}

template <class D, int V>
__global__ void logits_to_gradient_kernel(D* logits, LogitRows shape, const std::int32_t* targets, const float* largest,
                                          const float* sums, float factor) {
  for (std::int64_t i = blockIdx.x; i < shape.rows; i += gridDim.x) {
    D* row = logits + i * shape.stride;
    write_gradient<V>(row, shape, targets[i], largest[i], sums[i], factor, row);
  }
}

__global__ void losses_of_sums_kernel(const float* sums, const float* predicted, const std::int32_t* targets,
                                      std::int64_t count, float* losses) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    losses[i] = targets[i] == kIgnoredTarget ? 0.0F : logf(sums[i]) - predicted[i];
  }
}

/// Takes the row to shared memory. Returns when all of it is there.
template <int V, class D>
__device__ void cache_row(const D* row, std::int64_t count, D* cache) {
  const std::int64_t in_packs = count / V * V;
  for (std::int64_t j = threadIdx.x * V; j < in_packs; j += blockDim.x * V) {
    *reinterpret_cast<Pack<D, V>*>(cache + j) = *reinterpret_cast<const Pack<D, V>*>(row + j);
  }
  for (std::int64_t j = in_packs + threadIdx.x; j < count; j += blockDim.x) cache[j] = row[j];
  __syncthreads();
}

/// gradient: null for losses alone, else the logits.
template <class D, int V, bool kCached>
__global__ void cross_entropy_kernel(const D* logits, LogitRows shape, const std::int32_t* targets, float factor,
                                     float* losses, D* gradient) {
  __shared__ float maxima[kMostWarps];
  __shared__ float sums[kMostWarps];
  for (std::int64_t i = blockIdx.x; i < shape.rows; i += gridDim.x) {
    const D* row = logits + i * shape.stride;
    if constexpr (kCached) {
      D* cache = comm::dynamic_shared<D>();
      cache_row<V>(row, shape.range.count, cache);
      row = cache;
    }
    const std::int64_t target = targets[i] - shape.range.first;
    const bool own = target >= 0 && target < shape.range.count;
    const float at_target = own ? as_float(row[target]) : 0.0F;
    const float largest = row_max<V>(row, shape.range.count, maxima);
    const float sum = row_exponential_sum<V>(row, shape.range.count, largest, sums);
    if (threadIdx.x == 0) {
      losses[i] = targets[i] == kIgnoredTarget ? 0.0F : logf(sum) - (own ? at_target - largest : 0.0F);
    }
    if (gradient != nullptr) {
      write_gradient<V>(row, shape, targets[i], largest, sum, factor, gradient + i * shape.stride);
    }
    __syncthreads();
  }
}

/// Whether rows can be taken as packs.
template <class D>
bool in_packs(const LogitRows& shape, const void* logits) {
  return shape.stride % kPackElems<D> == 0 && reinterpret_cast<std::uintptr_t>(logits) % 16 == 0;
}

comm::LaunchShape launch_shape(const LogitRows& shape, std::int64_t vector) {
  // Four packs for each thread keep enough loads under way, and a short row does not need a large block.
  return block_per_row(shape.rows, std::max<std::int64_t>(1, shape.stride / vector / 4), kMostThreads);
}

void check_shape(const char* operation, const LogitRows& shape, std::size_t logits, std::size_t per_row) {
  DROPTEST_CHECK(shape.rows >= 0 && shape.range.count >= 0 && shape.stride >= shape.range.count &&
                     shape.stride <= std::numeric_limits<std::int32_t>::max() &&
                     logits >= static_cast<std::size_t>(shape.rows * shape.stride) &&
                     per_row >= static_cast<std::size_t>(shape.rows),
                 std::string(operation) + ": " + std::to_string(shape.rows) + " rows of " +
                     std::to_string(shape.range.count) + " in " + std::to_string(shape.stride) + ", " +
                     std::to_string(logits) + " logits, " + std::to_string(per_row) + " values of rows");
}

}  // namespace

template <class E>
void row_maxima(comm::DeviceSpan<const E> logits, const LogitRows& shape, comm::DeviceSpan<float> largest,
                comm::Stream& stream) {
  using D = DeviceElement<E>;
  check_shape("row_maxima", shape, logits.size(), largest.size());
  const bool packs = in_packs<D>(shape, logits.data());
  comm::launch("row_maxima", packs ? row_maxima_kernel<D, kPackElems<D>> : row_maxima_kernel<D, 1>,
               launch_shape(shape, packs ? kPackElems<D> : 1), stream, device_elems(logits), shape, largest.data());
}

template <class E>
void exponential_sums(comm::DeviceSpan<const E> logits, const LogitRows& shape,
                      comm::DeviceSpan<const std::int32_t> targets, comm::DeviceSpan<const float> largest,
                      comm::DeviceSpan<float> sums, comm::DeviceSpan<float> predicted, comm::Stream& stream) {
  using D = DeviceElement<E>;
  check_shape("exponential_sums", shape, logits.size(),
              std::min({targets.size(), largest.size(), sums.size(), predicted.size()}));
  const bool packs = in_packs<D>(shape, logits.data());
  comm::launch("exponential_sums", packs ? exponential_sums_kernel<D, kPackElems<D>> : exponential_sums_kernel<D, 1>,
               launch_shape(shape, packs ? kPackElems<D> : 1), stream, device_elems(logits), shape, targets.data(),
               largest.data(), sums.data(), predicted.data());
}

template <class E>
void logits_to_gradient(comm::DeviceSpan<E> logits, const LogitRows& shape,
                        comm::DeviceSpan<const std::int32_t> targets, comm::DeviceSpan<const float> largest,
                        comm::DeviceSpan<const float> sums, float factor, comm::Stream& stream) {
  using D = DeviceElement<E>;
  check_shape("logits_to_gradient", shape, logits.size(), std::min({targets.size(), largest.size(), sums.size()}));
  const bool packs = in_packs<D>(shape, logits.data());
  comm::launch("logits_to_gradient",
               packs ? logits_to_gradient_kernel<D, kPackElems<D>> : logits_to_gradient_kernel<D, 1>,
               launch_shape(shape, packs ? kPackElems<D> : 1), stream, device_elems(logits), shape, targets.data(),
               largest.data(), sums.data(), factor);
}

void losses_of_sums(comm::DeviceSpan<const float> sums, comm::DeviceSpan<const float> predicted,
                    comm::DeviceSpan<const std::int32_t> targets, comm::DeviceSpan<float> losses,
                    comm::Stream& stream) {
  DROPTEST_CHECK(sums.size() == losses.size() && predicted.size() == losses.size() && targets.size() == losses.size(),
                 "losses_of_sums: " + std::to_string(sums.size()) + " sums, " + std::to_string(predicted.size()) +
                     " predicted, " + std::to_string(losses.size()) + " losses");
  comm::launch("losses_of_sums", losses_of_sums_kernel, comm::cover(losses.size()), stream, sums.data(),
               predicted.data(), targets.data(), static_cast<std::int64_t>(losses.size()), losses.data());
}

namespace {

template <class D>
void launch_cross_entropy(const D* logits, const LogitRows& shape, const std::int32_t* targets, float factor,
                          float* losses, D* gradient, comm::Stream& stream) {
  const bool packs = in_packs<D>(shape, logits);
  const std::size_t row_bytes = static_cast<std::size_t>(shape.stride) * sizeof(D);
  const bool cached = row_bytes <= kMostCachedBytes;
  constexpr int kVector = kPackElems<D>;
  auto* kernel = packs ? cross_entropy_kernel<D, kVector, false> : cross_entropy_kernel<D, 1, false>;
  if (cached) kernel = packs ? cross_entropy_kernel<D, kVector, true> : cross_entropy_kernel<D, 1, true>;
  comm::LaunchShape launch = launch_shape(shape, packs ? kVector : 1);
  if (cached) launch.shared_bytes = row_bytes;
  comm::launch("cross_entropy", kernel, launch, stream, logits, shape, targets, factor, losses, gradient);
}

}  // namespace

template <class E>
void cross_entropy_forward(comm::DeviceSpan<const E> logits, const LogitRows& shape,
                           comm::DeviceSpan<const std::int32_t> targets, comm::DeviceSpan<float> losses,
                           comm::Stream& stream) {
  check_shape("cross_entropy_forward", shape, logits.size(), std::min(targets.size(), losses.size()));
  launch_cross_entropy<DeviceElement<E>>(device_elems(logits), shape, targets.data(), 0.0F, losses.data(), nullptr,
                                         stream);
}

template <class E>
void cross_entropy_forward_backward(comm::DeviceSpan<E> logits, const LogitRows& shape,
                                    comm::DeviceSpan<const std::int32_t> targets, float factor,
                                    comm::DeviceSpan<float> losses, comm::Stream& stream) {
  check_shape("cross_entropy_forward_backward", shape, logits.size(), std::min(targets.size(), losses.size()));
  launch_cross_entropy<DeviceElement<E>>(device_elems(logits), shape, targets.data(), factor, losses.data(),
                                         device_elems(logits), stream);
}

void sum_of_values(comm::DeviceSpan<const float> values, double divisor, GradientMode mode,
                   comm::DeviceSpan<double> sum, comm::Stream& stream) {
  DROPTEST_CHECK(sum.size() == 1, "sum_of_values: " + std::to_string(sum.size()) + " results");
  launch_ordered_sum<float>("sum_of_values", values.data(), static_cast<std::int64_t>(values.size()),
                            {sum.data(), divisor, mode == GradientMode::kAdd ? 1 : 0}, stream);
}

template void row_maxima<float>(comm::DeviceSpan<const float>, const LogitRows&, comm::DeviceSpan<float>,
                                comm::Stream&);
template void row_maxima<Bf16>(comm::DeviceSpan<const Bf16>, const LogitRows&, comm::DeviceSpan<float>, comm::Stream&);
template void exponential_sums<float>(comm::DeviceSpan<const float>, const LogitRows&,
                                      comm::DeviceSpan<const std::int32_t>, comm::DeviceSpan<const float>,
                                      comm::DeviceSpan<float>, comm::DeviceSpan<float>, comm::Stream&);
template void exponential_sums<Bf16>(comm::DeviceSpan<const Bf16>, const LogitRows&,
                                     comm::DeviceSpan<const std::int32_t>, comm::DeviceSpan<const float>,
                                     comm::DeviceSpan<float>, comm::DeviceSpan<float>, comm::Stream&);
template void logits_to_gradient<float>(comm::DeviceSpan<float>, const LogitRows&, comm::DeviceSpan<const std::int32_t>,
                                        comm::DeviceSpan<const float>, comm::DeviceSpan<const float>, float,
                                        comm::Stream&);
template void logits_to_gradient<Bf16>(comm::DeviceSpan<Bf16>, const LogitRows&, comm::DeviceSpan<const std::int32_t>,
                                       comm::DeviceSpan<const float>, comm::DeviceSpan<const float>, float,
                                       comm::Stream&);
template void cross_entropy_forward<float>(comm::DeviceSpan<const float>, const LogitRows&,
                                           comm::DeviceSpan<const std::int32_t>, comm::DeviceSpan<float>,
                                           comm::Stream&);
template void cross_entropy_forward<Bf16>(comm::DeviceSpan<const Bf16>, const LogitRows&,
                                          comm::DeviceSpan<const std::int32_t>, comm::DeviceSpan<float>, comm::Stream&);
template void cross_entropy_forward_backward<float>(comm::DeviceSpan<float>, const LogitRows&,
                                                    comm::DeviceSpan<const std::int32_t>, float,
                                                    comm::DeviceSpan<float>, comm::Stream&);
template void cross_entropy_forward_backward<Bf16>(comm::DeviceSpan<Bf16>, const LogitRows&,
                                                   comm::DeviceSpan<const std::int32_t>, float, comm::DeviceSpan<float>,
                                                   comm::Stream&);

}  // namespace droptest::models
