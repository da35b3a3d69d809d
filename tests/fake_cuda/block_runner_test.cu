// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <gtest/gtest.h>
#include <mma.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "comm/device/kernel_launch.cuh"
#include "tests/fake_cuda/device_array.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace droptest::fake_cuda {
namespace {

using BlockRunnerDeathTest = ::testing::Test;

Settings ordered(Order order) {
  Settings settings;
  settings.threads = settings.blocks = order;
  return settings;
}

template <class... Parameters, class... Arguments>
void run(const char* name, void (*kernel)(Parameters...), std::uint64_t blocks, unsigned threads,
         std::size_t shared_bytes, const Arguments&... arguments) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(queue_kernel(name, blocks, threads, shared_bytes, stream, [=] { kernel(arguments...); }), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

__global__ void indices_kernel(std::uint64_t* out, std::uint64_t count) {
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    out[i] = i * i;
  }
}

TEST(BlockRunner, EveryThreadOfEveryBlockRunsOnce) {
  DeviceArray<std::uint64_t> out(100'000);
  run("indices", indices_kernel, 17, 128, 0, out.data(), out.size());
  const std::vector<std::uint64_t> got = out.host();
  for (std::uint64_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], i * i);
}

// Each block adds its numbers in a tree.
__global__ void tree_kernel(const float* in, float* out) {
  __shared__ float parts[128];
  parts[threadIdx.x] = in[blockIdx.x * 128 + threadIdx.x];
  __syncthreads();
  for (unsigned width = 64; width > 0; width /= 2) {
    if (threadIdx.x < width) parts[threadIdx.x] += parts[threadIdx.x + width];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = parts[0];
}

TEST(BlockRunner, BarriersOfABlockHoldInEveryOrder) {
  std::vector<float> in(5 * 128);
  std::iota(in.begin(), in.end(), 1.0F);
  for (const Order order : {Order::kAscending, Order::kDescending, Order::kShuffled}) {
    const Scope scope(ordered(order));
    DeviceArray<float> from(in);
    DeviceArray<float> out(5);
    run("tree", tree_kernel, 5, 128, 0, from.data(), out.data());
    for (int b = 0; b < 5; ++b) {
      EXPECT_EQ(out.host()[b], std::accumulate(in.begin() + b * 128, in.begin() + (b + 1) * 128, 0.0F));
    }
  }
}

// Reads its neighbour's value; `synchronised` says whether it waits for it.
__global__ void neighbour_kernel(int* out, bool synchronised) {
  int* values = comm::dynamic_shared<int>();
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (synchronised) __syncthreads();
  out[threadIdx.x] = values[(threadIdx.x + 1) % blockDim.x];
}

TEST(BlockRunner, AMissingBarrierShowsAndSharedMemoryStartsAsRubbish) {
  for (const Order order : {Order::kAscending, Order::kShuffled}) {
    const Scope scope(ordered(order));
    DeviceArray<int> out(64);
    run("neighbour", neighbour_kernel, 1, 64, 64 * sizeof(int), out.data(), true);
    for (int t = 0; t < 64; ++t) EXPECT_EQ(out.host()[t], (t + 1) % 64);
    run("neighbour", neighbour_kernel, 1, 64, 64 * sizeof(int), out.data(), false);
    int wrong = 0;
    for (int t = 0; t < 64; ++t) wrong += out.host()[t] == -1 ? 1 : 0;
    EXPECT_GE(wrong, 10);
  }
}

__global__ void order_kernel(unsigned* next, unsigned* out) { out[(*next)++] = blockIdx.x * blockDim.x + threadIdx.x; }

TEST(BlockRunner, RunsInTheOrderOfTheSettings) {
  const auto sequence = [](const Settings& settings) {
    const Scope scope(settings);
    DeviceArray<unsigned> next(std::vector<unsigned>{0});
    DeviceArray<unsigned> out(64);
    run("order", order_kernel, 2, 32, 0, next.data(), out.data());
    return out.host();
  };
  std::vector<unsigned> expected(64);
  std::iota(expected.begin(), expected.end(), 0U);
  EXPECT_EQ(sequence(ordered(Order::kAscending)), expected);
  const std::vector<unsigned> shuffled = sequence(ordered(Order::kShuffled));
  EXPECT_NE(shuffled, expected);
  EXPECT_EQ(sequence(ordered(Order::kShuffled)), shuffled);
  Settings other_seed = ordered(Order::kShuffled);
  other_seed.seed = 2;
  EXPECT_NE(sequence(other_seed), shuffled);
  std::vector<unsigned> sorted = shuffled;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, expected);
  std::reverse(expected.begin(), expected.end());
  EXPECT_EQ(sequence(ordered(Order::kDescending)), expected);
}

// Threads of the second half end before the barrier.
__global__ void early_end_kernel(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  values[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
  __syncthreads();
  out[threadIdx.x] = values[31 - threadIdx.x];
}

TEST(BlockRunner, ABarrierWaitsOnlyForLivingThreads) {
  DeviceArray<int> out(32);
  run("early_end", early_end_kernel, 1, 64, 0, out.data());
  for (int t = 0; t < 32; ++t) EXPECT_EQ(out.host()[t], 32 - t);
}

template <class T>
__global__ void shuffle_kernel(T* sums, T* firsts, T* downs, T factor) {
  const T mine = static_cast<T>(threadIdx.x + 1) * factor;
  T sum = mine;
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
  sums[threadIdx.x] = sum;
  firsts[threadIdx.x] = __shfl_sync(0xFFFFFFFF, mine, 0);
  downs[threadIdx.x] = __shfl_down_sync(0xFFFFFFFF, mine, 3);
}

template <class T>
void check_shuffles(T factor) {
  for (const Order order : {Order::kAscending, Order::kDescending, Order::kShuffled}) {
    const Scope scope(ordered(order));
    DeviceArray<T> sums(64);
    DeviceArray<T> firsts(64);
    DeviceArray<T> downs(64);
    run("shuffle", shuffle_kernel<T>, 1, 64, 0, sums.data(), firsts.data(), downs.data(), factor);
    for (unsigned t = 0; t < 64; ++t) {
      const unsigned first = t / 32 * 32 + 1;
      EXPECT_EQ(sums.host()[t], static_cast<T>(first * 32 + 31 * 16) * factor);
      EXPECT_EQ(firsts.host()[t], static_cast<T>(first) * factor);
      EXPECT_EQ(downs.host()[t], static_cast<T>(t % 32 < 29 ? t + 4 : t + 1) * factor);
    }
  }
}

TEST(BlockRunner, ShufflesExchangeValuesOfAWarp) {
  check_shuffles<int>(-3);
  check_shuffles<unsigned>(5);
  check_shuffles<float>(0.5F);
  check_shuffles<double>(0.25);
  check_shuffles<unsigned long>(1UL << 40U);
}

__global__ void warp_kernel(int* out, bool synchronised) {
  __shared__ int values[64];
  values[threadIdx.x] = -1;
  __syncthreads();
  if (threadIdx.x % 32 == 31) values[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (synchronised) __syncwarp();
  out[threadIdx.x] = values[threadIdx.x | 31U];
}

TEST(BlockRunner, BarriersOfAWarpHold) {
  const Scope scope(ordered(Order::kAscending));
  DeviceArray<int> out(64);
  run("warp", warp_kernel, 1, 64, 0, out.data(), true);
  for (int t = 0; t < 64; ++t) EXPECT_EQ(out.host()[t], t | 31);
  run("warp", warp_kernel, 1, 64, 0, out.data(), false);
  EXPECT_EQ(out.host()[0], -1);
}

__global__ void stuck_kernel() {
  if (threadIdx.x == 5) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

TEST(BlockRunnerDeathTest, ThreadsThatWaitForEachOtherForeverAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run("stuck", stuck_kernel, 1, 64, 0), "kernel stuck, block 0: 64 threads wait for each other");
}

__global__ void mixed_kernel(int* out) {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    out[threadIdx.x] = __shfl_sync(0xFFFFFFFF, 1, 0);
  }
}

__global__ void half_mask_kernel(int* out) { out[threadIdx.x] = __shfl_xor_sync(0xFFFF, 1, 1); }

__global__ void ended_lane_kernel(int* out) {
  if (threadIdx.x == 7) return;
  out[threadIdx.x] = __shfl_sync(0xFFFFFFFF, 1, 7);
}

TEST(BlockRunnerDeathTest, MisusedWarpsAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  DeviceArray<int> out(32);
  EXPECT_DEATH(run("mixed", mixed_kernel, 1, 32, 0, out.data()), "kernel mixed, .* different kinds of barrier");
  EXPECT_DEATH(run("half", half_mask_kernel, 1, 32, 0, out.data()), "kernel half, .* mask is not that of a full warp");
  EXPECT_DEATH(run("ended", ended_lane_kernel, 1, 32, 0, out.data()), "kernel ended, .* lane 7 has ended");
  EXPECT_DEATH(run("odd", half_mask_kernel, 1, 33, 0, out.data()), "kernel odd: got 33 threads");
}

using Bf16Values = std::vector<__nv_bfloat16>;

// c = c + a b^T in tiles through shared memory; one warp. `synchronised`: waits before it reads the tile.
__global__ void product_kernel(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, bool synchronised) {
  namespace wmma = nvcuda::wmma;
  __shared__ __align__(32) float tile[16 * 16];
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a_tile;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> b_tile;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  for (unsigned i = threadIdx.x; i < 256; i += 32) tile[i] = -1.0F;
  __syncwarp();
  wmma::fill_fragment(sum, 0.5F);
  for (unsigned k = 0; k < 32; k += 16) {
    wmma::load_matrix_sync(a_tile, a + k, 32);
    wmma::load_matrix_sync(b_tile, b + k, 32);
    wmma::mma_sync(sum, a_tile, b_tile, sum);
  }
  wmma::store_matrix_sync(tile, sum, 16, wmma::mem_row_major);
  if (synchronised) __syncwarp();
  for (unsigned i = threadIdx.x; i < 256; i += 32) c[i] = tile[i];
}

TEST(BlockRunner, TilesAreMultiplied) {
  const Scope scope(ordered(Order::kDescending));
  Bf16Values a(16 * 32);
  Bf16Values b(16 * 32);
  for (int i = 0; i < 16 * 32; ++i) {
    a[i] = __float2bfloat16_rn(static_cast<float>(i % 7) - 3);
    b[i] = __float2bfloat16_rn(static_cast<float>(i % 5) - 2);
  }
  DeviceArray<__nv_bfloat16> on_device_a(a);
  DeviceArray<__nv_bfloat16> on_device_b(b);
  DeviceArray<float> c(256);
  run("product", product_kernel, 1, 32, 0, on_device_a.data(), on_device_b.data(), c.data(), true);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      float want = 0.5F;
      for (int k = 0; k < 32; ++k) want += __bfloat162float(a[i * 32 + k]) * __bfloat162float(b[j * 32 + k]);
      EXPECT_EQ(c.host()[i * 16 + j], want) << i << " " << j;
    }
  }
  run("product", product_kernel, 1, 32, 0, on_device_a.data(), on_device_b.data(), c.data(), false);
  EXPECT_EQ(c.host()[31], -1.0F);
}

}  // namespace
}  // namespace droptest::fake_cuda
