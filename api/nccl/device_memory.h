// SPDX-License-Identifier: Apache-2.0
// Memory on a device, also while a stream is captured: allocations belong to no graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

namespace droptest::nccl_shim {

/// Makes `device` the current one of the calling thread while it lives.
class DeviceScope {
 public:
  /// Throws: DeviceError.
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  bool differs_ = false;
};

/// The number of the capture that the stream is part of; 0: none. Throws: DeviceError.
unsigned long long capture_of(cudaStream_t stream);

/// A point in a stream of the current device.
class Event {
 public:
  /// Throws: DeviceError, as all methods.
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream);
  void is_waited_for_by(cudaStream_t stream) const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// Bytes on the current device. The destructor does not free them if the program ends, because CUDA may be gone.
class DeviceBytes {
 public:
  /// Throws: DeviceError that names the size.
  explicit DeviceBytes(std::size_t bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  /// Copies all bytes, and returns when that is done; work on other streams is not waited for. Throws: DeviceError.
  void write(std::span<const std::byte> bytes) const;
  void read(std::span<std::byte> bytes) const;

 private:
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) const;

  std::byte* data_ = nullptr;
  std::size_t bytes_;
  int device_ = 0;
};

}  // namespace droptest::nccl_shim
