// SPDX-License-Identifier: Apache-2.0
// Tensors in device memory, for communicators.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "comm/communicator.h"
#include "comm/device/device_span.h"
#include "comm/device/stream.h"

namespace droptest::comm {

/// The elements as a tensor that is used in the order of `stream`, which outlives the tensor.
template <class T>
Tensor device_tensor(DeviceSpan<T> elems, Stream& stream) requires(!std::is_const_v<T>) {
  return {element_type_of<T>(), {reinterpret_cast<std::byte*>(elems.data()), elems.size() * sizeof(T)}, &stream};
}
template <class T>
ConstTensor device_tensor(DeviceSpan<const T> elems, Stream& stream) {
  return {element_type_of<T>(), {reinterpret_cast<const std::byte*>(elems.data()), elems.size() * sizeof(T)}, &stream};
}

}  // namespace droptest::comm
