// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include "models/kernels/block_reduction.cuh"
#include "models/kernels/cross_entropy.h"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/narrow_floats.h"
#include "models/kernels/ordered_sum.cuh"

namespace droptest::models {
namespace {

// A block processes one row at a time. If the row stride and the address are aligned, the whole packs of V elements of
// a row are loaded as packs, and the rest one by one.

// A row that fits into this much shared memory, with the other shared memory of the kernel, is read from memory only
// once. Every device since sm_80 has 99 KiB for a block.
constexpr std::size_t kMostCachedBytes = 99U * 1024U - 512U;

/// The extents of a LogitBlock.
struct LogitRows {
  std::int64_t rows;
  std::int64_t stride;
  TokenRange range;
};

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

/// gradient[j] = (exp(row[j] - largest) / sum - [j is the target]) factor; 0 in the padding and in ignored rows.
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
      x.at[v] = v < columns ? (v == at_target ? p - 1.0F : p) * factor : 0.0F;
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

template <class D>
__global__ void weigh_rows_kernel(D* gradient, LogitRows shape, const std::int32_t* targets, const float* weights,
                                  float* losses) {
  for (std::int64_t i = blockIdx.x; i < shape.rows; i += gridDim.x) {
    if (targets[i] == kIgnoredTarget) continue;
    const float weight = weights[targets[i]];
    if (threadIdx.x == 0) losses[i] *= weight;
    D* row = gradient + i * shape.stride;
    for (std::int64_t j = threadIdx.x; j < shape.range.count; j += blockDim.x) {
      Floats<1> x = load_floats<1>(row + j);
      x.at[0] *= weight;
      store_floats<1>(x, row + j);
    }
  }
}

__global__ void losses_of_sums_kernel(const float* sums, const float* predicted, const std::int32_t* targets,
                                      std::int64_t count, float* losses) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    losses[i] = targets[i] == kIgnoredTarget ? 0.0F : logf(sums[i]) - predicted[i];
  }
}

/// Copies the row to shared memory. Returns when all of it is there.
template <int V, class D>
__device__ void cache_row(const D* row, std::int64_t count, D* cache) {
  const std::int64_t in_packs = count / V * V;
  for (std::int64_t j = threadIdx.x * V; j < in_packs; j += blockDim.x * V) {
    *reinterpret_cast<Pack<D, V>*>(cache + j) = *reinterpret_cast<const Pack<D, V>*>(row + j);
  }
  for (std::int64_t j = in_packs + threadIdx.x; j < count; j += blockDim.x) cache[j] = row[j];
  __syncthreads();
}

/// `gradient` is null if only losses are wanted, else it is the logits.
template <class D, int V, bool kCached>
__global__ void cross_entropy_kernel(const D* logits, LogitRows shape, const std::int32_t* targets, float* losses,
                                     float factor, D* gradient) {
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

/// How a kernel loops over the rows: in packs if alignment allows.
struct RowLaunch {
  LogitRows rows;
  bool packs;
  comm::LaunchShape shape;
};

/// `others` are the tensors with one element for each row.
template <class E>
RowLaunch row_launch(const char* operation, const LogitBlock& b, std::initializer_list<comm::ConstTensor> others) {
  constexpr int kVector = kPackElems<DeviceElement<E>>;
  DROPTEST_CHECK(b.rows >= 0 && b.range.count >= 0 && b.stride >= b.range.count &&
                     b.stride <= std::numeric_limits<std::int32_t>::max() && have(b.rows * b.stride, {b.logits}) &&
                     have(b.rows, others) && b.targets.count >= static_cast<std::size_t>(b.rows),
                 std::string(operation) + ": " + std::to_string(b.rows) + " rows of " + std::to_string(b.range.count) +
                     " in " + std::to_string(b.stride) + ", " + std::to_string(b.logits.count_elems()) +
                     " logits: a tensor does not fit");
  const bool packs = rows_of_packs<DeviceElement<E>>(b.stride, b.logits.bytes.data());
  // Four packs for each thread keep enough loads under way, and a short row does not need a large block.
  const std::int64_t packs_of_thread = std::max<std::int64_t>(1, b.stride / (packs ? kVector : 1) / 4);
  return {{b.rows, b.stride, b.range}, packs, block_per_row(b.rows, packs_of_thread, kMostRowThreads)};
}

}  // namespace

template <class E>
void row_maxima(const LogitBlock& b, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const RowLaunch launch = row_launch<E>("row_maxima", b, {b.largest});
  comm::launch("row_maxima", launch.packs ? row_maxima_kernel<D, kPackElems<D>> : row_maxima_kernel<D, 1>, launch.shape,
               stream, device_elems<E>(b.logits), launch.rows, device_elems<float>(b.largest));
}

template <class E>
void exponential_sums(const LogitBlock& b, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const RowLaunch launch = row_launch<E>("exponential_sums", b, {b.largest, b.sums, b.predicted});
  comm::launch("exponential_sums",
               launch.packs ? exponential_sums_kernel<D, kPackElems<D>> : exponential_sums_kernel<D, 1>, launch.shape,
               stream, device_elems<E>(b.logits), launch.rows, b.targets.data, device_elems<float>(b.largest),
               device_elems<float>(b.sums), device_elems<float>(b.predicted));
}

template <class E>
void logits_to_gradient(const LogitBlock& b, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const RowLaunch launch = row_launch<E>("logits_to_gradient", b, {b.largest, b.sums});
  comm::launch("logits_to_gradient",
               launch.packs ? logits_to_gradient_kernel<D, kPackElems<D>> : logits_to_gradient_kernel<D, 1>,
               launch.shape, stream, device_elems<E>(b.logits), launch.rows, b.targets.data,
               device_elems<float>(b.largest), device_elems<float>(b.sums), b.factor);
}

template <class E>
void weigh_rows(const LogitBlock& b, comm::DeviceSpan<const float> weights, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const RowLaunch launch = row_launch<E>("weigh_rows", b, {b.losses});
  comm::launch("weigh_rows", weigh_rows_kernel<D>, launch.shape, stream, device_elems<E>(b.logits), launch.rows,
               b.targets.data, weights.data(), device_elems<float>(b.losses));
}

void losses_of_sums(const LogitBlock& b, comm::Stream& stream) {
  DROPTEST_CHECK(have(b.rows, {b.sums, b.predicted, b.losses}) && b.targets.count >= static_cast<std::size_t>(b.rows),
                 "losses_of_sums: " + std::to_string(b.rows) + " rows: a tensor does not fit");
  comm::launch("losses_of_sums", losses_of_sums_kernel, comm::cover(static_cast<std::uint64_t>(b.rows)), stream,
               device_elems<float>(b.sums), device_elems<float>(b.predicted), b.targets.data, b.rows,
               device_elems<float>(b.losses));
}

template <class E>
void cross_entropy(const LogitBlock& b, Logits logits, comm::Stream& stream) {
  using D = DeviceElement<E>;
  constexpr int kVector = kPackElems<D>;
  RowLaunch launch = row_launch<E>("cross_entropy", b, {b.losses});
  const std::size_t row_bytes = static_cast<std::size_t>(b.stride) * sizeof(D);
  const bool cached = row_bytes <= kMostCachedBytes;
  auto* kernel = launch.packs ? cross_entropy_kernel<D, kVector, false> : cross_entropy_kernel<D, 1, false>;
  if (cached) kernel = launch.packs ? cross_entropy_kernel<D, kVector, true> : cross_entropy_kernel<D, 1, true>;
  if (cached) launch.shape.shared_bytes = row_bytes;
  comm::launch("cross_entropy", kernel, launch.shape, stream, device_elems<E>(b.logits), launch.rows, b.targets.data,
               device_elems<float>(b.losses), b.factor,
               logits == Logits::kToGradient ? device_elems<E>(b.logits) : nullptr);
}

void sum_of_values(comm::DeviceSpan<const float> values, double divisor, GradientMode mode,
                   comm::DeviceSpan<double> sum, comm::Stream& stream) {
  DROPTEST_CHECK(sum.size() == 1, "sum_of_values: " + std::to_string(sum.size()) + " results");
  launch_ordered_sum<float>("sum_of_values", values.data(), static_cast<std::int64_t>(values.size()),
                            {sum.data(), divisor, mode == GradientMode::kAdd ? 1 : 0}, stream);
}

#define DROPTEST_CROSS_ENTROPY(E)                                                               \
  template void row_maxima<E>(const LogitBlock&, comm::Stream&);                                \
  template void exponential_sums<E>(const LogitBlock&, comm::Stream&);                          \
  template void logits_to_gradient<E>(const LogitBlock&, comm::Stream&);                        \
  template void weigh_rows<E>(const LogitBlock&, comm::DeviceSpan<const float>, comm::Stream&); \
  template void cross_entropy<E>(const LogitBlock&, Logits, comm::Stream&);
DROPTEST_CROSS_ENTROPY(float)
DROPTEST_CROSS_ENTROPY(Bf16)
DROPTEST_CROSS_ENTROPY(Fp16)
#undef DROPTEST_CROSS_ENTROPY

}  // namespace droptest::models
