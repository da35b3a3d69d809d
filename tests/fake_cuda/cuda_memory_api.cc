// SPDX-License-Identifier: Apache-2.0
// CUDA's runtime calls on the fake device: memory and copies.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/failure.h"
#include "tests/fake_cuda/runtime.h"
#include "tests/fake_cuda/runtime_call.h"

namespace droptest::fake_cuda {
namespace {

// Both places of a copy must fit its kind.
bool fits(cudaMemcpyKind kind, Place to, Place from) {
  const bool to_device = to == Place::kDevice;
  const bool from_device = from == Place::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

// Memory that is not page-locked is read before the call returns, and is written before it returns.
cudaError_t copy(Runtime& runtime, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream, const char* function) {
  if (const cudaError_t state = current_state(runtime)) return state;
  const std::shared_ptr<Queue> queue = runtime.queue_of(stream);
  if (!queue) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const Place place_to = runtime.memory.place_of(to, bytes, function);
  const Place place_from = runtime.memory.place_of(from, bytes, function);
  if (!fits(kind, place_to, place_from)) return cudaErrorInvalidValue;
  // Other memory has no owner here: it is not looked at again.
  const auto check = [&runtime, bytes, function](const void* data, Place place) {
    if (runtime.memory.place_of(data, bytes, function) != place) {
      fail(std::string(function) + " uses memory that was freed after the call");
    }
  };
  Work work;
  work.name = function;
  work.microseconds += 1e-6 * static_cast<double>(bytes);
  if (place_from == Place::kPageable) {
    const auto* first = static_cast<const unsigned char*>(from);
    work.run = [to, place_to, check, copied = std::vector<unsigned char>(first, first + bytes)] {
      if (place_to != Place::kPageable) check(to, place_to);
      std::memcpy(to, copied.data(), copied.size());
    };
  } else {
    work.run = [to, from, bytes, place_to, place_from, check] {
      if (place_to != Place::kPageable) check(to, place_to);
      check(from, place_from);
      std::memmove(to, from, bytes);
    };
  }
  runtime.push(queue, std::move(work));
  return place_to == Place::kPageable ? finish(runtime, *queue, queue->given) : cudaSuccess;
}

cudaError_t allocate(Runtime& runtime, Place place, void** data, std::size_t bytes) {
  if (const cudaError_t state = current_state(runtime)) return state;
  if (data == nullptr) return cudaErrorInvalidValue;
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  const int device = current_device();
  if (place == Place::kDevice) {
    const std::size_t used = runtime.memory.live_bytes(device);
    if (used > runtime.settings.memory_bytes || bytes > runtime.settings.memory_bytes - used) {
      return cudaErrorMemoryAllocation;
    }
  }
  *data = runtime.memory.allocate(place, device, bytes);
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t release(Runtime& runtime, Place place, void* data) {
  if (data == nullptr) return cudaSuccess;
  if (!runtime.memory.free(place, data)) return cudaErrorInvalidValue;
  if (runtime.unfinished_work() == 0) runtime.memory.forget_freed();
  return cudaSuccess;
}

cudaError_t fill(Runtime& runtime, void* data, int value, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t state = current_state(runtime)) return state;
  const std::shared_ptr<Queue> queue = runtime.queue_of(stream);
  if (!queue) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  if (runtime.memory.place_of(data, bytes, "cudaMemset") == Place::kPageable) return cudaErrorInvalidValue;
  Work work;
  work.name = "cudaMemset";
  work.microseconds += 1e-6 * static_cast<double>(bytes);
  work.run = [&runtime, data, value, bytes] {
    runtime.memory.place_of(data, bytes, "cudaMemset");
    std::memset(data, value, bytes);
  };
  runtime.push(queue, std::move(work));
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("cudaMemGetInfo", [&](Runtime& runtime) {
    if (const cudaError_t state = current_state(runtime)) return state;
    *total = runtime.settings.memory_bytes;
    *free = *total - std::min(*total, runtime.memory.live_bytes(current_device()));
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return call("cudaMalloc", [&](Runtime& runtime) { return allocate(runtime, Place::kDevice, data, bytes); });
}

cudaError_t cudaFree(void* data) {
  return call("cudaFree", [&](Runtime& runtime) { return release(runtime, Place::kDevice, data); });
}

cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  return call("cudaMallocHost", [&](Runtime& runtime) { return allocate(runtime, Place::kPinned, data, bytes); });
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  return call("cudaHostAlloc", [&](Runtime& runtime) { return allocate(runtime, Place::kPinned, data, bytes); });
}

cudaError_t cudaFreeHost(void* data) {
  return call("cudaFreeHost", [&](Runtime& runtime) { return release(runtime, Place::kPinned, data); });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  return call("cudaPointerGetAttributes", [&](Runtime& runtime) {
    *attributes = cudaPointerAttributes{};
    const Place place = runtime.memory.place_of(data, 0, "cudaPointerGetAttributes");
    attributes->type = place == Place::kDevice   ? cudaMemoryTypeDevice
                       : place == Place::kPinned ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeUnregistered;
    attributes->device = runtime.memory.device_of(data);
    if (place == Place::kDevice) attributes->devicePointer = const_cast<void*>(data);
    if (place == Place::kPinned) attributes->hostPointer = const_cast<void*>(data);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpyAsync",
              [&](Runtime& runtime) { return copy(runtime, to, from, bytes, kind, stream, "cudaMemcpyAsync"); });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemcpyPeerAsync", [&](Runtime& runtime) {
    return copy(runtime, to, from, bytes, cudaMemcpyDeviceToDevice, stream, "cudaMemcpyPeerAsync");
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return call("cudaMemcpy",
              [&](Runtime& runtime) { return copy(runtime, to, from, bytes, kind, nullptr, "cudaMemcpy"); });
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", [&](Runtime& runtime) { return fill(runtime, data, value, bytes, stream); });
}

cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  return call("cudaMemset", [&](Runtime& runtime) { return fill(runtime, data, value, bytes, nullptr); });
}

}  // extern "C"

}  // namespace droptest::fake_cuda
