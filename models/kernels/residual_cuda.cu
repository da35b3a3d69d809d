// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/narrow_floats.h"
#include "models/kernels/residual.h"

namespace droptest::models {
namespace {

template <class D, int V>
__global__ void add_bias_kernel(const D* bias, std::int64_t rows, std::int64_t width, D* values) {
  for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    for (std::int64_t j = threadIdx.x * V; j < width; j += blockDim.x * V) {
      Floats<V> x = load_floats<V>(values + i * width + j);
      const Floats<V> b = load_floats<V>(bias + j);
#pragma unroll
      for (int v = 0; v < V; ++v) x.at[v] += b.at[v];
      store_floats<V>(x, values + i * width + j);
    }
  }
}

// The matrix is cut into chunks of rows and tiles of columns. A block has a chunk of a tile: its warps take the rows in
// turn, its lanes the columns. The sums of several chunks are a small matrix, which is summed again.
constexpr unsigned kRowLanes = 8;
constexpr std::int64_t kLeastRowsOfChunk = 256;
constexpr std::int64_t kMostChunks = 128;

struct Chunks {
  std::int64_t rows = 0;
  std::int64_t count = 0;
};

Chunks chunks_of(const RowShape& shape) {
  const std::int64_t even = (shape.rows + kMostChunks - 1) / kMostChunks;
  const std::int64_t rows = even > kLeastRowsOfChunk ? even : kLeastRowsOfChunk;
  return {rows, shape.rows > rows ? (shape.rows + rows - 1) / rows : 1};
}

template <class D, int V>
__global__ void column_sums_kernel(const D* values, RowShape shape, Chunks chunks, int adds, float* sums) {
  constexpr unsigned kTile = kWarp * V;
  __shared__ float partial[kRowLanes * kTile];
  const std::int64_t tiles = (shape.width + kTile - 1) / kTile;
  const unsigned row_lane = threadIdx.x / kWarp;
  const unsigned column = threadIdx.x % kWarp * V;
  for (std::int64_t item = blockIdx.x; item < tiles * chunks.count; item += gridDim.x) {
    const std::int64_t first_column = item % tiles * kTile;
    const std::int64_t chunk = item / tiles;
    const std::int64_t end = (chunk + 1) * chunks.rows < shape.rows ? (chunk + 1) * chunks.rows : shape.rows;
    Floats<V> own = {};
    if (first_column + column < shape.width) {
      for (std::int64_t i = chunk * chunks.rows + row_lane; i < end; i += kRowLanes) {
        const Floats<V> x = load_floats<V>(values + i * shape.stride + first_column + column);
#pragma unroll
        for (int v = 0; v < V; ++v) own.at[v] += x.at[v];
      }
    }
#pragma unroll
    for (int v = 0; v < V; ++v) partial[row_lane * kTile + column + v] = own.at[v];
    __syncthreads();
    for (unsigned j = threadIdx.x; j < kTile; j += blockDim.x) {
      if (first_column + j >= shape.width) continue;
      float sum = 0;
      for (unsigned lane = 0; lane < kRowLanes; ++lane) sum += partial[lane * kTile + j];
      float* out = sums + chunk * shape.width + first_column + j;
      *out = adds != 0 ? *out + sum : sum;
    }
    __syncthreads();
  }
}

template <class D>
void launch_column_sums(const D* values, const RowShape& shape, const Chunks& chunks, int adds, float* sums,
                        comm::Stream& stream) {
  const bool packs = shape.stride % kPackElems<D> == 0 && rows_of_packs<D>(shape.width, values);
  const std::int64_t tile = kWarp * (packs ? kPackElems<D> : 1);
  const auto items = static_cast<std::uint64_t>((shape.width + tile - 1) / tile * chunks.count);
  comm::launch("column_sums", packs ? column_sums_kernel<D, kPackElems<D>> : column_sums_kernel<D, 1>,
               {std::min(items, kMostBlocks), kRowLanes * kWarp, 0}, stream, values, shape, chunks, adds, sums);
}

}  // namespace

template <class E>
void add_bias(comm::DeviceSpan<const E> bias, std::int64_t rows, comm::DeviceSpan<E> values, comm::Stream& stream) {
  using D = DeviceElement<E>;
  const auto width = static_cast<std::int64_t>(bias.size());
  DROPTEST_CHECK(rows >= 0 && values.size() >= static_cast<std::size_t>(rows * width),
                 "add_bias: [" + std::to_string(rows) + ", " + std::to_string(width) + "] of " +
                     std::to_string(values.size()) + " values");
  const bool packs = rows_of_packs<D>(width, bias.data(), values.data());
  comm::launch("add_bias", packs ? add_bias_kernel<D, kPackElems<D>> : add_bias_kernel<D, 1>,
               block_per_row(rows, width / (packs ? kPackElems<D> : 1)), stream, device_elems(bias), rows, width,
               device_elems(values));
}

std::uint64_t column_sums_scratch_elems(const RowShape& shape) {
  const Chunks chunks = chunks_of(shape);
  return chunks.count > 1 ? static_cast<std::uint64_t>(chunks.count * shape.width) : 0;
}

template <class E>
void column_sums(comm::DeviceSpan<const E> values, const RowShape& shape, GradientMode mode,
                 comm::DeviceSpan<float> sums, comm::DeviceSpan<float> scratch, comm::Stream& stream) {
  DROPTEST_CHECK(
      shape.rows >= 0 && shape.width >= 0 && shape.stride >= shape.width &&
          sums.size() >= static_cast<std::size_t>(shape.width) && scratch.size() >= column_sums_scratch_elems(shape) &&
          (shape.rows == 0 || values.size() >= static_cast<std::size_t>((shape.rows - 1) * shape.stride + shape.width)),
      "column_sums: [" + std::to_string(shape.rows) + ", " + std::to_string(shape.width) + "] with rows of " +
          std::to_string(shape.stride) + ", of " + std::to_string(values.size()) + " values into " +
          std::to_string(sums.size()) + " sums, scratch of " + std::to_string(scratch.size()));
  const Chunks chunks = chunks_of(shape);
  const int adds = mode == GradientMode::kAdd ? 1 : 0;
  if (chunks.count == 1) {
    launch_column_sums(device_elems(values), shape, chunks, adds, sums.data(), stream);
    return;
  }
  launch_column_sums(device_elems(values), shape, chunks, 0, scratch.data(), stream);
  launch_column_sums<float>(scratch.data(), {chunks.count, shape.width, shape.width}, {chunks.count, 1}, adds,
                            sums.data(), stream);
}

#define DROPTEST_RESIDUAL(E)                                                                                      \
  template void add_bias<E>(comm::DeviceSpan<const E>, std::int64_t, comm::DeviceSpan<E>, comm::Stream&);         \
  template void column_sums<E>(comm::DeviceSpan<const E>, const RowShape&, GradientMode, comm::DeviceSpan<float>, \
                               comm::DeviceSpan<float>, comm::Stream&);
DROPTEST_RESIDUAL(float)
DROPTEST_RESIDUAL(Bf16)
DROPTEST_RESIDUAL(Fp16)
#undef DROPTEST_RESIDUAL

}  // namespace droptest::models
