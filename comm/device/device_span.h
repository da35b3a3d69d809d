// SPDX-License-Identifier: Apache-2.0
// A borrowed range of elements in the memory of a device. It does not convert to a range of host memory.
#pragma once

#include <cstddef>
#include <type_traits>

#include "sim/error.h"

namespace droptest::comm {

/// Like std::span, but its elements cannot be reached from the host.
template <class T>
class DeviceSpan {
 public:
  DeviceSpan() = default;
  DeviceSpan(T* data, std::size_t size) : data_(data), size_(size) {}
  /// Converts to a range that is only read.
  template <class U>
  requires(std::is_same_v<const U, T>) DeviceSpan(DeviceSpan<U> other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()), size_(other.size()) {}

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  DeviceSpan subspan(std::size_t first, std::size_t count) const {
    DROPTEST_CHECK(first <= size_ && count <= size_ - first, "outside of a device range");
    return {data_ + first, count};
  }
  DeviceSpan first(std::size_t count) const { return subspan(0, count); }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace droptest::comm
