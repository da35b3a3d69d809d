// SPDX-License-Identifier: Apache-2.0
// Element access in kernels: floats in registers, and packs of 16 bytes in memory if the addresses allow it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "comm/bfloat16.h"
#include "comm/communicator.h"
#include "comm/device/device_span.h"
#include "comm/device/kernel_launch.cuh"
#include "comm/float16.h"

namespace droptest::models {

/// CUDA's type for an element of an interface.
template <class E>
struct DeviceElementOf;
template <>
struct DeviceElementOf<float> {
  using Type = float;
};
template <>
struct DeviceElementOf<comm::Bf16> {
  using Type = __nv_bfloat16;
};
template <>
struct DeviceElementOf<comm::Fp16> {
  using Type = __half;
};
template <class E>
using DeviceElement = typename DeviceElementOf<E>::Type;

template <class E>
DeviceElement<E>* device_elems(comm::DeviceSpan<E> span) {
  return reinterpret_cast<DeviceElement<E>*>(span.data());
}
template <class E>
const DeviceElement<E>* device_elems(comm::DeviceSpan<const E> span) {
  return reinterpret_cast<const DeviceElement<E>*>(span.data());
}

/// The elements of a tensor of type E; null if it has none.
template <class E>
const DeviceElement<E>* device_elems(const comm::ConstTensor& tensor) {
  DROPTEST_CHECK(tensor.bytes.empty() || tensor.type == comm::element_type_of<E>(), "a tensor of another type");
  return reinterpret_cast<const DeviceElement<E>*>(tensor.bytes.data());
}
template <class E>
DeviceElement<E>* device_elems(const comm::Tensor& tensor) {
  return const_cast<DeviceElement<E>*>(device_elems<E>(comm::ConstTensor(tensor)));
}

/// Whether all tensors have at least `elems` elements.
inline bool have(std::int64_t elems, std::initializer_list<comm::ConstTensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [elems](const comm::ConstTensor& tensor) {
    return tensor.count_elems() >= static_cast<std::uint64_t>(elems);
  });
}

/// The number of elements in a pack of 16 bytes.
template <class D>
inline constexpr int kPackElems = static_cast<int>(16 / sizeof(D));

/// Whether all addresses are multiples of 16 bytes.
template <class... Pointers>
bool packs_fit(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}
/// Whether each row of `width` elements of D consists of whole packs at aligned addresses.
template <class D, class... Pointers>
bool rows_of_packs(std::int64_t width, const Pointers*... pointers) {
  return width % kPackElems<D> == 0 && packs_fit(pointers...);
}

__device__ inline float as_float(float value) { return value; }
__device__ inline float as_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float as_float(__half value) { return __half2float(value); }

template <class D>
__device__ D from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
/// The float after a round trip through D.
template <class D>
__device__ float rounded_to(float value) {
  return as_float(from_float<D>(value));
}

template <class D, int V>
struct alignas(V * sizeof(D)) Pack {
  D elems[V];
};

template <int V>
struct Floats {
  float at[V];
};

/// Loads V elements. The address must be a multiple of 16 bytes, or of the size of V elements if that is smaller.
template <int V, class D>
__device__ Floats<V> load_floats(const D* from) {
  constexpr int kEach = V < kPackElems<D> ? V : kPackElems<D>;
  Floats<V> values;
#pragma unroll
  for (int first = 0; first < V; first += kEach) {
    const Pack<D, kEach> pack = *reinterpret_cast<const Pack<D, kEach>*>(from + first);
#pragma unroll
    for (int i = 0; i < kEach; ++i) values.at[first + i] = as_float(pack.elems[i]);
  }
  return values;
}
template <int V, class D>
__device__ void store_floats(const Floats<V>& values, D* to) {
  constexpr int kEach = V < kPackElems<D> ? V : kPackElems<D>;
#pragma unroll
  for (int first = 0; first < V; first += kEach) {
    Pack<D, kEach> pack;
#pragma unroll
    for (int i = 0; i < kEach; ++i) pack.elems[i] = from_float<D>(values.at[first + i]);
    *reinterpret_cast<Pack<D, kEach>*>(to + first) = pack;
  }
}

inline constexpr std::uint64_t kMostBlocks = 1U << 16U;

// Blocks with a row in registers have at most kMostRowThreads threads. Blocks of layer norm with a row in shared memory
// use at most kMostRowBytes of it.
inline constexpr unsigned kMostRowThreads = 512;
inline constexpr std::size_t kMostRowBytes = 96U * 1024U;

/// The launch of one block for each row; its threads loop over the packs of the row.
inline comm::LaunchShape block_per_row(std::int64_t rows, std::int64_t packs, unsigned most_threads = 256) {
  const auto threads = static_cast<unsigned>(std::min<std::int64_t>((packs + 31) / 32 * 32, most_threads));
  return {packs == 0 ? 0 : std::min(static_cast<std::uint64_t>(rows), kMostBlocks), threads, 0};
}

}  // namespace droptest::models
