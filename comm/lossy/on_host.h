// SPDX-License-Identifier: Apache-2.0
// Work on values of a device in host memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/tensor.h"

namespace droptest::comm {

/// Calls f(values), which reads them, in host memory: values on a device are copied, which waits for their stream.
template <class F>
void read_on_host(ConstTensor values, const F& f) {
  if (values.stream == nullptr) return f(values);
  std::vector<std::byte> host(values.bytes.size());
  copy_to_host(values.bytes.data(), host, *values.stream);
  values.stream->synchronize();
  f(ConstTensor(values.type, host));
}

/// Calls f(values), which may change them, in host memory: values on a device are copied there and back.
template <class F>
void change_on_host(Tensor values, const F& f) {
  if (values.stream == nullptr) return f(values);
  std::vector<std::byte> host(values.bytes.size());
  copy_to_host(values.bytes.data(), host, *values.stream);
  values.stream->synchronize();
  f(Tensor(values.type, host));
  copy_to_device(std::span<const std::byte>(host), values.bytes.data(), *values.stream);
  values.stream->synchronize();  // the copy on the host is freed next
}

}  // namespace droptest::comm
