// SPDX-License-Identifier: Apache-2.0
// From an element type that is known at run time to one that the compiler knows.
#pragma once

#include <cstdint>
#include <type_traits>

#include "comm/communicator.h"
#include "sim/error.h"

namespace droptest::comm {

/// Calls visit(std::type_identity<T>()) with the type of such elements.
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
  }
  DROPTEST_CHECK(false, "unknown element type");
}

/// An element as a number: exact but for large integers.
template <class T>
double number_of(T element) {
  return static_cast<double>(element);
}
inline double number_of(Bf16 element) { return static_cast<double>(to_float(element)); }

}  // namespace droptest::comm
