// SPDX-License-Identifier: Apache-2.0
// Sums over the elements of tensors, for the host.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "comm/device/device_buffer.h"
#include "comm/device/kernel_launch.cuh"
#include "comm/device/tensor_elements.cuh"
#include "comm/lossy/statistics/device_samples.h"
#include "comm/visit_elements.h"

namespace droptest::comm {
namespace {

// The sum over the block's threads, in a fixed order; only thread 0 has the result.
__device__ double block_sum(double value, double* lanes) {
  lanes[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) lanes[threadIdx.x] += lanes[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = lanes[0];
  __syncthreads();
  return sum;
}

// The result is NaN if the value of any thread is NaN.
__device__ double larger_or_nan(double a, double b) { return a < b || b != b ? b : a; }

__device__ double block_max(double value, double* lanes) {
  lanes[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      lanes[threadIdx.x] = larger_or_nan(lanes[threadIdx.x], lanes[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const double largest = lanes[0];
  __syncthreads();
  return largest;
}

// Partial sums of each block, which the host adds in order. Their number depends only on the number of elements.
std::uint64_t partial_blocks(std::uint64_t count_elems) {
  constexpr std::uint64_t kMostBlocks = 128;
  return std::clamp<std::uint64_t>(count_elems / kThreads, 1, kMostBlocks);
}

template <class T>
__global__ void errors_kernel(const T* exact, const T* result, std::uint64_t count_elems, ErrorSums* partials) {
  __shared__ double lanes[kThreads];
  ErrorSums sums;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count_elems;
       i += stride) {
    const double e = as_double(exact[i]);
    const double r = as_double(result[i]);
    sums.error_energy += (r - e) * (r - e);
    sums.exact_energy += e * e;
    sums.result_energy += r * r;
    sums.inner_product += e * r;
    sums.error_sum += r - e;
  }
  ErrorSums of_block;
  of_block.error_energy = block_sum(sums.error_energy, lanes);
  of_block.exact_energy = block_sum(sums.exact_energy, lanes);
  of_block.result_energy = block_sum(sums.result_energy, lanes);
  of_block.inner_product = block_sum(sums.inner_product, lanes);
  of_block.error_sum = block_sum(sums.error_sum, lanes);
  if (threadIdx.x == 0) partials[blockIdx.x] = of_block;
}

// Differences to rank 0's values are exact zeros if ranks agree.
template <class T>
__global__ void divergence_kernel(const std::byte* const* contributions, int ranks, std::uint64_t count_elems,
                                  DivergenceSums* partials) {
  __shared__ double lanes[kThreads];
  double energy = 0;
  double widest = 0;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count_elems;
       i += stride) {
    const double reference = as_double(reinterpret_cast<const T*>(contributions[0])[i]);
    double differences = 0;
    double squares = 0;
    double lowest = 0;
    double highest = 0;
    for (int r = 1; r < ranks; ++r) {
      const double difference = as_double(reinterpret_cast<const T*>(contributions[r])[i]) - reference;
      differences += difference;
      squares += difference * difference;
      lowest = difference < lowest ? difference : lowest;
      highest = difference > highest ? difference : highest;
    }
    energy += squares - differences * differences / ranks;
    // The comparisons drop a NaN; the sum keeps it.
    widest = larger_or_nan(widest, differences != differences ? differences : highest - lowest);
  }
  DivergenceSums of_block;
  of_block.energy = block_sum(energy, lanes);
  of_block.max = block_max(widest, lanes);
  if (threadIdx.x == 0) partials[blockIdx.x] = of_block;
}

// One block for each packet.
template <class T>
__global__ void energies_kernel(const T* data, std::uint64_t count_elems, std::uint64_t elems_per_packet,
                                std::uint64_t packets, double* energies) {
  __shared__ double lanes[kThreads];
  for (std::uint64_t packet = blockIdx.x; packet < packets; packet += gridDim.x) {
    const std::uint64_t begin = packet * elems_per_packet;
    const std::uint64_t end = begin + elems_per_packet < count_elems ? begin + elems_per_packet : count_elems;
    double energy = 0;
    for (std::uint64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      const double value = as_double(data[i]);
      energy += value * value;
    }
    const double sum = block_sum(energy, lanes);
    if (threadIdx.x == 0) energies[packet] = sum;
  }
}

// Copies the results of kernels to the host; waits for the stream.
template <class T>
std::vector<T> download(const DeviceBuffer<T>& buffer, Stream& stream) {
  std::vector<T> values(buffer.elems().size());
  copy_to_host(buffer.elems(), std::span<T>(values), stream);
  stream.synchronize();
  return values;
}

}  // namespace

ErrorSums error_sums_on_device(ConstTensor exact, ConstTensor result) {
  Stream& stream = stream_of(result);
  const std::uint64_t blocks = partial_blocks(exact.count_elems());
  DeviceBuffer<ErrorSums> partials(blocks, "partial sums of a sample");
  visit_elements(exact.type, [&]<class T>(std::type_identity<T>) {
    launch("sample of errors", errors_kernel<T>, {blocks, kThreads, 0}, stream, exact.as<T>().data(),
           result.as<T>().data(), exact.count_elems(), partials.elems().data());
  });
  ErrorSums sums;
  for (const ErrorSums& partial : download(partials, stream)) {
    sums.error_energy += partial.error_energy;
    sums.exact_energy += partial.exact_energy;
    sums.result_energy += partial.result_energy;
    sums.inner_product += partial.inner_product;
    sums.error_sum += partial.error_sum;
  }
  return sums;
}

DivergenceSums divergence_sums_on_device(ElementType type, std::uint64_t count_elems,
                                         std::span<const std::byte* const> contributions, Stream& stream) {
  const std::uint64_t blocks = partial_blocks(count_elems);
  DeviceBuffer<DivergenceSums> partials(blocks, "partial sums of a sample");
  const auto* staged = static_cast<const std::byte* const*>(stream.stage(std::as_bytes(contributions)));
  visit_elements(type, [&]<class T>(std::type_identity<T>) {
    launch("sample of divergence", divergence_kernel<T>, {blocks, kThreads, 0}, stream, staged, contributions.size(),
           count_elems, partials.elems().data());
  });
  DivergenceSums sums;
  for (const DivergenceSums& partial : download(partials, stream)) {
    sums.energy += partial.energy;
    sums.max = sums.max < partial.max || std::isnan(partial.max) ? partial.max : sums.max;
  }
  return sums;
}

std::vector<double> packet_energies_on_device(ConstTensor data, const sim::Packetizer& packets) {
  Stream& stream = stream_of(data);
  if (packets.packets() == 0) return {};
  DeviceBuffer<double> energies(packets.packets(), "energies of packets");
  visit_elements(data.type, [&]<class T>(std::type_identity<T>) {
    constexpr std::uint64_t kMostBlocks = 1U << 16U;
    launch("energies of packets", energies_kernel<T>, {std::min(packets.packets(), kMostBlocks), kThreads, 0}, stream,
           data.as<T>().data(), packets.count_elems(), packets.elems_per_packet(), packets.packets(),
           energies.elems().data());
  });
  std::vector<double> values = download(energies, stream);
  for (double& value : values) {
    if (value != value) value = std::numeric_limits<double>::infinity();
  }
  return values;
}

}  // namespace droptest::comm
