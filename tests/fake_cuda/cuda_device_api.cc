// SPDX-License-Identifier: Apache-2.0
// CUDA's runtime calls on the fake device: devices and errors.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>

#include "tests/fake_cuda/runtime.h"
#include "tests/fake_cuda/runtime_call.h"

namespace droptest::fake_cuda {
namespace {

thread_local cudaError_t last_error = cudaSuccess;  // CUDA keeps it by thread, too

bool no_such_device(const Runtime& runtime, int device) { return device < 0 || device >= runtime.settings.devices; }

}  // namespace

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// Calls of a machine without devices fail before they look at anything else.
cudaError_t current_state(const Runtime& runtime) {
  if (runtime.settings.devices == 0) return cudaErrorNoDevice;
  return runtime.broken(current_device());
}

cudaError_t finish(Runtime& runtime, Queue& queue, std::uint64_t position) {
  runtime.count_synchronization();
  runtime.run_to(queue, position);
  return runtime.broken(queue.device);
}

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
    set_current_device(device);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&](Runtime& runtime) {
    if (runtime.settings.devices == 0) return cudaErrorNoDevice;
    *device = current_device();
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
    runtime.run_device(current_device());
    return runtime.broken(current_device());
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

}  // namespace droptest::fake_cuda
