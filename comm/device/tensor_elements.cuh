// SPDX-License-Identifier: Apache-2.0
// Elements of tensors as kernels compute with them.
#pragma once

#include <limits>

#include "comm/communicator.h"
#include "sim/error.h"

namespace droptest::comm {

/// Sums are made in the type itself, but those of bfloat16 in float.
template <class T>
struct Wide {
  using Type = T;
  __device__ static T of(T x) { return x; }
  __device__ static T narrow(T x) { return x; }
};
template <>
struct Wide<Bf16> {
  using Type = float;
  __device__ static float of(Bf16 x) { return to_float(x); }
  __device__ static Bf16 narrow(float x) { return to_bf16(x); }
};
template <class T>
using WideOf = typename Wide<T>::Type;

/// a op b; a NaN is the maximum of anything.
template <class W>
__device__ W combine(ReduceOp op, W a, W b) {
  if (op == ReduceOp::kSum) return a + b;
  return (a < b || b != b) ? b : a;
}

/// Exact but for large integers.
template <class T>
__device__ double as_double(T x) {
  return static_cast<double>(Wide<T>::of(x));
}

/// What a maximum leaves out; the host gives it to kernels, which cannot ask for numeric limits.
template <class W>
W lowest_value() {
  using Limits = std::numeric_limits<W>;
  return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
}

/// The stream of a tensor in device memory.
inline Stream& stream_of(ConstTensor tensor) {
  DROPTEST_CHECK(tensor.stream != nullptr, "a tensor of host memory");
  return *tensor.stream;
}

}  // namespace droptest::comm
