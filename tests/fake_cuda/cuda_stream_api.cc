// SPDX-License-Identifier: Apache-2.0
// CUDA's runtime calls on the fake device: streams and events.
#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "tests/fake_cuda/runtime.h"
#include "tests/fake_cuda/runtime_call.h"

namespace droptest::fake_cuda {
namespace {

cudaError_t new_stream(const char* function, cudaStream_t* stream, unsigned flags) {
  return call(function, [&](Runtime& runtime) {
    if (const cudaError_t state = current_state(runtime)) return state;
    if (stream == nullptr) return cudaErrorInvalidValue;
    *stream = runtime.create_stream(current_device(), (flags & cudaStreamNonBlocking) == 0);
    return cudaSuccess;
  });
}

cudaError_t new_event(const char* function, cudaEvent_t* event) {
  return call(function, [&](Runtime& runtime) {
    if (const cudaError_t state = current_state(runtime)) return state;
    if (event == nullptr) return cudaErrorInvalidValue;
    *event = runtime.create_event(current_device());
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

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

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", [&](Runtime& runtime) {
    *status = runtime.settings.streams_capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
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
    queue->times.try_emplace(queue->given, queue->microseconds);  // set when the work is done, if it is not done yet
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

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call("cudaEventElapsedTime", [&](Runtime& runtime) {
    const Event* first = runtime.event_of(start);
    const Event* last = runtime.event_of(end);
    if (first == nullptr || last == nullptr || !first->queue || !last->queue) return cudaErrorInvalidResourceHandle;
    if (first->queue->done < first->position || last->queue->done < last->position) return cudaErrorNotReady;
    *milliseconds =
        static_cast<float>(1e-3 * (last->queue->times.at(last->position) - first->queue->times.at(first->position)));
    return cudaSuccess;
  });
}

}  // extern "C"

}  // namespace droptest::fake_cuda
