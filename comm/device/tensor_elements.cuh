// SPDX-License-Identifier: Apache-2.0
// Elements of tensors in kernels: arithmetic types, and access.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/stream.h"
#include "comm/visit_elements.h"
#include "sim/error.h"

namespace droptest::comm {

/// Threads of a block of these kernels.
inline constexpr unsigned kThreads = 256;

/// a op b; a NaN is larger than any other value. A mean is a sum until it is completed.
template <class W>
__device__ W combine(ReduceOp op, W a, W b) {
  if (op != ReduceOp::kMax) return sum_of(a, b);
  return (a < b || b != b) ? b : a;
}

/// The result after all `inputs` are combined.
template <class W>
__device__ W completed(ReduceOp op, W combined, int inputs) {
  return op == ReduceOp::kMean ? static_cast<W>(combined / static_cast<W>(inputs)) : combined;
}

/// The conversion is exact except for large integers.
template <class T>
__device__ double as_double(T x) {
  return static_cast<double>(widened(x));
}

/// The neutral element of a maximum; the host gives it to kernels, which cannot use numeric limits.
template <class W>
W lowest_value() {
  using Limits = std::numeric_limits<W>;
  return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
}

/// Neighbours that are read and written together.
template <class T, int kElems>
struct alignas(sizeof(T) * kElems) Pack {
  T elems[kElems];
};
inline constexpr std::size_t kPackBytes = 16;

/// Whether packs may begin at all these addresses.
inline bool are_aligned(std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs) {
  const auto aligned = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % kPackBytes == 0; };
  return std::ranges::all_of(inputs, aligned) && std::ranges::all_of(outputs, aligned);
}

/// Bytes for Stream::stage(), one array after the other.
class StagedArrays {
 public:
  template <class T>
  std::size_t add(std::span<const T> values) {
    const std::size_t offset = (bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T);
    bytes_.resize(offset + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + offset, values.data(), values.size_bytes());
    return offset;
  }
  const std::byte* stage(Stream& stream) const { return static_cast<const std::byte*>(stream.stage(bytes_)); }

 private:
  std::vector<std::byte> bytes_;
};

/// The stream of a tensor in device memory.
inline Stream& stream_of(ConstTensor tensor) {
  DROPTEST_CHECK(tensor.stream != nullptr, "a tensor of host memory");
  return *tensor.stream;
}

}  // namespace droptest::comm
