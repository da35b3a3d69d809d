// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/tensor_segments.h"

#include <algorithm>
#include <string>
#include <vector>

#include "models/kernels/element_pack.cuh"
#include "models/kernels/ordered_sum.cuh"

namespace droptest::models {
namespace {

std::vector<TensorSegments::Chunk> cut(std::span<const ParameterRange> segments) {
  std::vector<TensorSegments::Chunk> chunks;
  for (const ParameterRange& segment : segments) {
    for (std::uint64_t done = 0; done < segment.count; done += TensorSegments::kChunkElems) {
      chunks.push_back({segment.offset + done,
                        static_cast<std::uint32_t>(std::min(TensorSegments::kChunkElems, segment.count - done)),
                        segment.decay == Decay::kDecays ? 1U : 0U, static_cast<float>(segment.learning_rate_factor)});
    }
  }
  return chunks;
}

__device__ double square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

__global__ void squares_of_chunks_kernel(const TensorSegments::Chunk* chunks, std::int64_t count, const float* values,
                                         int aligned, double* sums) {
  constexpr int kVector = kPackElems<float>;
  __shared__ double shared[kSumThreads];
  for (std::int64_t c = blockIdx.x; c < count; c += gridDim.x) {
    const TensorSegments::Chunk chunk = chunks[c];
    const float* own_values = values + chunk.offset;
    const unsigned in_packs = aligned != 0 && chunk.offset % kVector == 0 ? chunk.count / kVector * kVector : 0;
    double own = 0;
    for (unsigned i = threadIdx.x * kVector; i < in_packs; i += kSumThreads * kVector) {
      const Floats<kVector> x = load_floats<kVector>(own_values + i);
#pragma unroll
      for (int v = 0; v < kVector; ++v) own += square(x.at[v]);
    }
    for (unsigned i = in_packs + threadIdx.x; i < chunk.count; i += kSumThreads) own += square(own_values[i]);
    const double sum = block_sum_of_doubles(own, shared);
    if (threadIdx.x == 0) sums[c] = sum;
  }
}

}  // namespace

TensorSegments::TensorSegments(std::span<const ParameterRange> segments, comm::Stream& stream) {
  const std::vector<Chunk> chunks = cut(segments);
  for (const ParameterRange& segment : segments) extent_ = std::max(extent_, segment.offset + segment.count);
  chunks_ = comm::DeviceBuffer<Chunk>(chunks.size(), "table of tensors");
  comm::copy_to_device(std::span<const Chunk>(chunks), chunks_.elems(), stream);
  stream.synchronize();
}

void squares_of_chunks(const TensorSegments& segments, comm::DeviceSpan<const float> values,
                       comm::DeviceSpan<double> sums, comm::Stream& stream) {
  const comm::DeviceSpan<const TensorSegments::Chunk> chunks = segments.chunks();
  DROPTEST_CHECK(values.size() >= segments.extent() && sums.size() == chunks.size(),
                 "squares_of_chunks: " + std::to_string(values.size()) + " values of at least " +
                     std::to_string(segments.extent()) + ", " + std::to_string(sums.size()) + " sums of " +
                     std::to_string(chunks.size()) + " chunks");
  comm::launch("squares_of_chunks", squares_of_chunks_kernel,
               {std::min<std::uint64_t>(chunks.size(), kMostBlocks), kSumThreads, 0}, stream, chunks.data(),
               static_cast<std::int64_t>(chunks.size()), values.data(), packs_fit(values.data()) ? 1 : 0, sums.data());
}

void add_in_order(comm::DeviceSpan<const double> sums, comm::DeviceSpan<double> sum, comm::Stream& stream) {
  DROPTEST_CHECK(sum.size() == 1, "add_in_order: " + std::to_string(sum.size()) + " results, want 1");
  launch_ordered_sum<double>("add_in_order", sums.data(), static_cast<std::int64_t>(sums.size()), {sum.data()}, stream);
}

}  // namespace droptest::models
