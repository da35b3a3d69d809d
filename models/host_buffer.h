// SPDX-License-Identifier: Apache-2.0
// Memory for the large arrays of a model: parameters, gradients, moments.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>

namespace droptest::models {

/// Zeroed bytes that begin on a page boundary. Large buffers request huge pages: a step visits hundreds of megabytes,
/// and huge pages save most of its address translations.
class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  /// Throws: std::bad_alloc.
  explicit ZeroedMemory(std::size_t bytes);
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
};

/// An owned array of `count` elements that starts as zeros.
template <class T>
class HostBuffer {
  static_assert(std::is_trivially_copyable_v<T>, "elements are numbers: all bits zero is the value zero");

 public:
  HostBuffer() = default;
  explicit HostBuffer(std::size_t count) : memory_(count * sizeof(T)), count_(count) {}
  std::span<T> elems() { return {reinterpret_cast<T*>(memory_.data()), count_}; }
  std::span<const T> elems() const { return {reinterpret_cast<const T*>(memory_.data()), count_}; }

 private:
  ZeroedMemory memory_;
  std::size_t count_ = 0;
};

}  // namespace droptest::models
