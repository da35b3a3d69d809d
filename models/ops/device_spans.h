// SPDX-License-Identifier: Apache-2.0
// Tensors of a device as spans of an element type.
#pragma once

#include <cstdint>

#include "comm/device/device_span.h"
#include "comm/tensor.h"
#include "models/kernels/embedding.h"
#include "sim/error.h"

namespace droptest::models {

/// The elements of a tensor. Throws: CheckError if they are not of type T.
template <class T>
comm::DeviceSpan<T> span_of(const comm::Tensor& tensor) {
  DROPTEST_CHECK(tensor.bytes.empty() || tensor.type == comm::element_type_of<T>(), "a tensor of another type");
  return {reinterpret_cast<T*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(T)};
}
template <class T>
comm::DeviceSpan<const T> span_of(const comm::ConstTensor& tensor) {
  DROPTEST_CHECK(tensor.bytes.empty() || tensor.type == comm::element_type_of<T>(), "a tensor of another type");
  return {reinterpret_cast<const T*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(T)};
}

inline comm::DeviceSpan<const std::int32_t> span_of(TokenIds tokens) { return {tokens.data, tokens.count}; }

}  // namespace droptest::models
