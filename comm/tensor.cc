// SPDX-License-Identifier: Apache-2.0
#include "comm/tensor.h"

#include "comm/visit_elements.h"

namespace droptest::comm {

std::string_view element_type_name(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kFloat64:
      return "float64";
    case ElementType::kUint64:
      return "uint64";
    case ElementType::kBfloat16:
      return "bfloat16";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
    case ElementType::kUint8:
      return "uint8";
  }
  return "unknown type";
}

std::size_t element_bytes(ElementType type) {
  return visit_elements(type, []<class T>(std::type_identity<T>) { return sizeof(T); });
}

bool is_integer(ElementType type) {
  return visit_elements(type, []<class T>(std::type_identity<T>) { return std::is_integral_v<T>; });
}

}  // namespace droptest::comm
