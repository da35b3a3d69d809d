// SPDX-License-Identifier: Apache-2.0
// Maps an element type that is known at run time to a C++ type.
#pragma once

#include <cstdint>
#include <type_traits>

#include "comm/tensor.h"
#include "sim/error.h"

namespace droptest::comm {

/// Calls visit(std::type_identity<T>()) with the C++ type of the elements.
template <class Visit>
decltype(auto) visit_elements(ElementType type, const Visit& visit) {
  switch (type) {
    case ElementType::kFloat32:
      return visit(std::type_identity<float>());
    case ElementType::kFloat64:
      return visit(std::type_identity<double>());
    case ElementType::kUint64:
      return visit(std::type_identity<std::uint64_t>());
    case ElementType::kBfloat16:
      return visit(std::type_identity<Bf16>());
    case ElementType::kFloat16:
      return visit(std::type_identity<Fp16>());
    case ElementType::kInt32:
      return visit(std::type_identity<std::int32_t>());
    case ElementType::kInt64:
      return visit(std::type_identity<std::int64_t>());
    case ElementType::kUint8:
      return visit(std::type_identity<std::uint8_t>());
  }
  DROPTEST_CHECK(false, "unknown element type");
}

/// An element as a number: exact except for large integers.
template <class T>
constexpr double number_of(T element) {
  if constexpr (kIsNarrowFloat<T>) {
    return static_cast<double>(to_float(element));
  } else {
    return static_cast<double>(element);
  }
}

/// The type of the arithmetic on elements: their own, or float for narrow floats.
template <class T>
using WideOf = std::conditional_t<kIsNarrowFloat<T>, float, T>;
template <class T>
constexpr WideOf<T> widened(T element) {
  if constexpr (kIsNarrowFloat<T>) {
    return to_float(element);
  } else {
    return element;
  }
}
template <class T>
constexpr T narrowed(WideOf<T> value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16(value);
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return to_fp16(value);
  } else {
    return value;
  }
}

/// a + b; sums of integers wrap.
template <class W>
constexpr W sum_of(W a, W b) {
  if constexpr (std::is_integral_v<W>) {
    using U = std::make_unsigned_t<W>;
    return static_cast<W>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

}  // namespace droptest::comm
