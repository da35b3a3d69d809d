// SPDX-License-Identifier: Apache-2.0
// Rows of elements of a type that a kernel knows only at run time. So a kernel with float arithmetic, which converts
// elements only when it loads and stores them, is compiled once for all types and branches before each loop over
// elements.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "comm/tensor.h"

namespace droptest::models {

/// The address of elements of type float, __nv_bfloat16 or __half. Void is void, or const void for elements that are
/// only read.
template <class Void>
struct TypedRows {
  Void* elems;
  comm::ElementType type;  ///< kFloat32, kBfloat16 or kFloat16

  /// The rows from `count` elements further on.
  __device__ TypedRows from(std::int64_t count) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    const std::int64_t bytes = type == comm::ElementType::kFloat32 ? sizeof(float) : sizeof(__half);
    return {static_cast<Byte*>(elems) + count * bytes, type};
  }

  /// Calls body(elems) with a typed pointer.
  template <class Body>
  __device__ void visit(const Body& body) const {
    if (type == comm::ElementType::kFloat32) {
      body(as<float>());
    } else if (type == comm::ElementType::kBfloat16) {
      body(as<__nv_bfloat16>());
    } else {
      body(as<__half>());
    }
  }

 private:
  template <class D>
  __device__ auto as() const {
    return static_cast<std::conditional_t<std::is_const_v<Void>, const D, D>*>(elems);
  }
};

template <class D>
auto typed_rows(D* elems) {
  using Element = std::remove_const_t<D>;
  static_assert(std::is_same_v<Element, float> || std::is_same_v<Element, __nv_bfloat16> ||
                std::is_same_v<Element, __half>);
  constexpr comm::ElementType kType = std::is_same_v<Element, float>           ? comm::ElementType::kFloat32
                                      : std::is_same_v<Element, __nv_bfloat16> ? comm::ElementType::kBfloat16
                                                                               : comm::ElementType::kFloat16;
  return TypedRows<std::conditional_t<std::is_const_v<D>, const void, void>>{elems, kType};
}

}  // namespace droptest::models
