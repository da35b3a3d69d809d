// SPDX-License-Identifier: Apache-2.0
// Memory of a device, and host memory for copies that do not block the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "comm/device/device_span.h"
#include "comm/device/stream.h"

namespace droptest::comm {

/// Owned bytes on a device, at an address that is a multiple of 256; content unspecified.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// `what` names the memory in errors: "activations of 12 blocks". Throws: DeviceError that names the memory, its size
  /// and the free bytes, if the device has too little.
  DeviceMemory(std::size_t bytes, std::string_view what);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Bytes of all DeviceMemory of this process, on all its devices. Thread safety: any thread. If threads allocate and
/// free at the same time, the peak may be too high by the size of one allocation of each.
struct DeviceMemoryUse {
  std::uint64_t bytes = 0;
  std::uint64_t peak = 0;  ///< largest sum since the program began, or since restart_device_memory_peak()
};
DeviceMemoryUse device_memory_use();
void restart_device_memory_peak();

/// An owned array of `count` elements on the calling thread's current device; content unspecified.
template <class T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>, "elements are copied as bytes");

 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::size_t count, std::string_view what) : memory_(count * sizeof(T), what), count_(count) {}
  DeviceSpan<T> elems() { return {reinterpret_cast<T*>(memory_.data()), count_}; }
  DeviceSpan<const T> elems() const { return {reinterpret_cast<const T*>(memory_.data()), count_}; }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  DeviceMemory memory_;
  std::size_t count_ = 0;
};

/// Bytes on a device that are allocated again for a request that is larger than all before.
class GrowingDeviceMemory {
 public:
  /// The content is unspecified. Waits for the stream if it allocates, since queued work may use the old memory.
  std::byte* at_least(std::size_t bytes, Stream& stream) {
    if (memory_.bytes() < bytes) {
      stream.synchronize();
      memory_ = DeviceMemory(bytes, "buffer of a collective");
    }
    return memory_.data();
  }

 private:
  DeviceMemory memory_;
};

/// Page-locked host memory: copies from and to it do not block the host.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

/// An owned array of `count` elements in page-locked host memory; content unspecified.
template <class T>
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t count) : memory_(count * sizeof(T)), count_(count) {}
  std::span<T> elems() { return {reinterpret_cast<T*>(memory_.data()), count_}; }

 private:
  PinnedMemory memory_;
  std::size_t count_ = 0;
};

/// Copies bytes in the order of the stream. A host range must stay as it is until the copy is done; the host waits for
/// the copy if that range is not page-locked.
void copy_to_device(std::span<const std::byte> from, std::byte* to, Stream& stream);
void copy_to_host(const std::byte* from, std::span<std::byte> to, Stream& stream);
void copy_on_device(const std::byte* from, std::byte* to, std::size_t bytes, Stream& stream);
/// Sets every byte to zero.
void zero_on_device(std::byte* data, std::size_t bytes, Stream& stream);

template <class T>
void copy_to_device(std::span<const T> from, DeviceSpan<T> to, Stream& stream) {
  DROPTEST_CHECK(from.size() == to.size(), "copy to a device range of another size");
  copy_to_device(std::as_bytes(from), reinterpret_cast<std::byte*>(to.data()), stream);
}
template <class T>
void copy_to_host(DeviceSpan<const T> from, std::span<T> to, Stream& stream) {
  DROPTEST_CHECK(from.size() == to.size(), "copy to a host range of another size");
  copy_to_host(reinterpret_cast<const std::byte*>(from.data()), std::as_writable_bytes(to), stream);
}
template <class T>
void copy_on_device(DeviceSpan<const T> from, DeviceSpan<T> to, Stream& stream) {
  DROPTEST_CHECK(from.size() == to.size(), "copy to a device range of another size");
  copy_on_device(reinterpret_cast<const std::byte*>(from.data()), reinterpret_cast<std::byte*>(to.data()),
                 from.size() * sizeof(T), stream);
}
template <class T>
void zero_on_device(DeviceSpan<T> data, Stream& stream) {
  zero_on_device(reinterpret_cast<std::byte*>(data.data()), data.size() * sizeof(T), stream);
}

}  // namespace droptest::comm
