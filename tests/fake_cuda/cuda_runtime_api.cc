// SPDX-License-Identifier: Apache-2.0
// CUDA's runtime calls on the fake device: those that the project uses, and their near relations.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/fake_cuda/failure.h"
#include "tests/fake_cuda/runtime.h"

namespace {

using droptest::fake_cuda::Event;
using droptest::fake_cuda::fail;
using droptest::fake_cuda::Place;
using droptest::fake_cuda::Queue;
using droptest::fake_cuda::Runtime;
using droptest::fake_cuda::Work;

thread_local cudaError_t last_error = cudaSuccess;  // CUDA keeps it by thread, too

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// Every call: the lock, the count, a planned error.
template <class Body>
cudaError_t call(const char* function, const Body& body) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  if (const int planned = runtime.begin(function)) return remember(static_cast<cudaError_t>(planned));
  return remember(body(runtime));
}

bool no_such_device(const Runtime& runtime, int device) { return device < 0 || device >= runtime.settings.devices; }

// Calls of a machine without devices fail before they look at anything else.
cudaError_t current_state(const Runtime& runtime) {
  if (runtime.settings.devices == 0) return cudaErrorNoDevice;
  return runtime.broken(droptest::fake_cuda::current_device());
}

cudaError_t finish(Runtime& runtime, Queue& queue, std::uint64_t position) {
  runtime.count_synchronization();
  runtime.run_to(queue, position);
  return runtime.broken(queue.device);
}

// Each place of a copy must be what its kind says.
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
  const auto check_places = [&runtime, to, from, bytes, function, place_to, place_from] {
    if (runtime.memory.place_of(to, bytes, function) != place_to ||
        (from != nullptr && runtime.memory.place_of(from, bytes, function) != place_from)) {
      fail(std::string(function) + ": memory was freed before the copy");
    }
  };
  Work work;
  work.name = function;
  if (place_from == Place::kPageable) {
    const auto* first = static_cast<const unsigned char*>(from);
    work.run = [to, check_places, copied = std::vector<unsigned char>(first, first + bytes)] {
      check_places();
      std::memcpy(to, copied.data(), copied.size());
    };
  } else {
    work.run = [to, from, bytes, check_places] {
      check_places();
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
  const int device = droptest::fake_cuda::current_device();
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
  work.run = [&runtime, data, value, bytes] {
    runtime.memory.place_of(data, bytes, "cudaMemset");
    std::memset(data, value, bytes);
  };
  runtime.push(queue, std::move(work));
  return cudaSuccess;
}

cudaError_t new_stream(const char* function, cudaStream_t* stream, unsigned flags) {
  return call(function, [&](Runtime& runtime) {
    if (const cudaError_t state = current_state(runtime)) return state;
    if (stream == nullptr) return cudaErrorInvalidValue;
    *stream = runtime.create_stream(droptest::fake_cuda::current_device(), (flags & cudaStreamNonBlocking) == 0);
    return cudaSuccess;
  });
}

cudaError_t new_event(const char* function, cudaEvent_t* event) {
  return call(function, [&](Runtime& runtime) {
    if (const cudaError_t state = current_state(runtime)) return state;
    if (event == nullptr) return cudaErrorInvalidValue;
    *event = runtime.create_event(droptest::fake_cuda::current_device());
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&](Runtime& runtime) {
    *count = runtime.settings.devices;
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](Runtime& runtime) {
    if (runtime.settings.devices == 0) return cudaErrorNoDevice;
    if (no_such_device(runtime, device)) return cudaErrorInvalidDevice;
    droptest::fake_cuda::set_current_device(device);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&](Runtime& runtime) {
    if (runtime.settings.devices == 0) return cudaErrorNoDevice;
    *device = droptest::fake_cuda::current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&](Runtime& runtime) {
    if (no_such_device(runtime, device)) return cudaErrorInvalidDevice;
    *properties = cudaDeviceProp{};
    std::snprintf(properties->name, sizeof properties->name, "Fake GPU %d", device);
    properties->totalGlobalMem = runtime.settings.memory_bytes;
    properties->sharedMemPerBlock = std::size_t{48} << 10U;
    properties->sharedMemPerBlockOptin = std::size_t{99} << 10U;
    properties->regsPerBlock = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxGridSize[0] = 0x7FFFFFFF;
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->unifiedAddressing = 1;
    properties->concurrentKernels = 1;
    properties->pciBusID = device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call("cudaDeviceGetAttribute", [&](Runtime& runtime) {
    if (no_such_device(runtime, device)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return cudaSuccess;
      case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
      case cudaDevAttrWarpSize:
        *value = 32;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = 48 << 10;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 99 << 10;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return call("cudaDeviceGetPCIBusId", [&](Runtime& runtime) {
    if (no_such_device(runtime, device)) return cudaErrorInvalidDevice;
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call("cudaDeviceCanAccessPeer", [&](Runtime& runtime) {
    if (no_such_device(runtime, device) || no_such_device(runtime, peer)) return cudaErrorInvalidDevice;
    *can = device != peer ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return call("cudaDeviceEnablePeerAccess",
              [&](Runtime& runtime) { return no_such_device(runtime, peer) ? cudaErrorInvalidDevice : cudaSuccess; });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [](Runtime& runtime) {
    if (const cudaError_t state = current_state(runtime)) return state;
    runtime.count_synchronization();
    runtime.run_device(droptest::fake_cuda::current_device());
    return runtime.broken(droptest::fake_cuda::current_device());
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("cudaMemGetInfo", [&](Runtime& runtime) {
    if (const cudaError_t state = current_state(runtime)) return state;
    *total = runtime.settings.memory_bytes;
    *free = *total - std::min(*total, runtime.memory.live_bytes(droptest::fake_cuda::current_device()));
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

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return new_stream("cudaStreamCreate", stream, 0); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return new_stream("cudaStreamCreateWithFlags", stream, flags);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return new_stream("cudaStreamCreateWithPriority", stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy", [&](Runtime& runtime) {
    return runtime.destroy_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", [&](Runtime& runtime) {
    const std::shared_ptr<Queue> queue = runtime.queue_of(stream);
    return queue ? finish(runtime, *queue, queue->given) : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call("cudaStreamQuery", [&](Runtime& runtime) {
    const std::shared_ptr<Queue> queue = runtime.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    if (queue->done < queue->given && queue->queries++ < runtime.settings.unready_queries) return cudaErrorNotReady;
    queue->queries = 0;
    runtime.run_to(*queue, queue->given);
    return runtime.broken(queue->device);
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return call("cudaStreamGetDevice", [&](Runtime& runtime) {
    const std::shared_ptr<Queue> queue = runtime.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    *device = queue->device;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", [&](Runtime& runtime) {
    const std::shared_ptr<Queue> queue = runtime.queue_of(stream);
    const Event* awaited = runtime.event_of(event);
    if (!queue || awaited == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t broken = runtime.broken(queue->device)) return broken;
    if (!awaited->queue || awaited->queue == queue) return cudaSuccess;
    Work work;
    work.name = "cudaStreamWaitEvent";
    work.awaited = awaited->queue;
    work.position = awaited->position;
    runtime.push(queue, std::move(work));
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call("cudaLaunchHostFunc", [&](Runtime& runtime) {
    const std::shared_ptr<Queue> queue = runtime.queue_of(stream);
    if (!queue) return cudaErrorInvalidResourceHandle;
    Work work;
    work.name = "a host function";
    work.run = [function, data] { function(data); };
    runtime.push(queue, std::move(work));
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return new_event("cudaEventCreate", event); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return new_event("cudaEventCreateWithFlags", event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", [&](Runtime& runtime) {
    return runtime.destroy_event(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", [&](Runtime& runtime) {
    const std::shared_ptr<Queue> queue = runtime.queue_of(stream);
    Event* recorded = runtime.event_of(event);
    if (!queue || recorded == nullptr || recorded->device != queue->device) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t broken = runtime.broken(queue->device)) return broken;
    recorded->queue = queue;
    recorded->position = queue->given;
    recorded->queries = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", [&](Runtime& runtime) {
    Event* asked = runtime.event_of(event);
    if (asked == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t broken = runtime.broken(asked->device)) return broken;
    if (!asked->queue || asked->queue->done >= asked->position) return cudaSuccess;
    if (asked->queries++ < runtime.settings.unready_queries) return cudaErrorNotReady;
    runtime.run_to(*asked->queue, asked->position);
    return runtime.broken(asked->device);
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", [&](Runtime& runtime) {
    const Event* awaited = runtime.event_of(event);
    if (awaited == nullptr) return cudaErrorInvalidResourceHandle;
    if (!awaited->queue) return runtime.broken(awaited->device);
    return finish(runtime, *awaited->queue, awaited->position);
  });
}

// No time passes on the fake device.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call("cudaEventElapsedTime", [&](Runtime& runtime) {
    const Event* first = runtime.event_of(start);
    const Event* last = runtime.event_of(end);
    if (first == nullptr || last == nullptr || !first->queue || !last->queue) return cudaErrorInvalidResourceHandle;
    if (last->queue->done < last->position) return cudaErrorNotReady;
    *milliseconds = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return call("cudaFuncSetAttribute", [](Runtime&) { return cudaSuccess; });
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorLaunchOutOfResources:
      return "cudaErrorLaunchOutOfResources";
    case cudaErrorUnknown:
      return "cudaErrorUnknown";
    default:
      return "an error that the fake device has no name for";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "as told by the fake device";
  }
}

}  // extern "C"
