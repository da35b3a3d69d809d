// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "api/foreign_memory.h"
#include "comm/device/cuda_error.h"
#include "sim/error.h"

namespace droptest::api {
namespace {

using comm::check_cuda;

// Keeps the current device of the calling thread, which belongs to the caller.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

}  // namespace

void ForeignMemory::check_device(const droptest_memory& memory) {
  const DeviceScope scope(memory.device);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(memory.stream), &capture), "cudaStreamIsCapturing");
  if (capture != cudaStreamCaptureStatusNone) {
    throw DeviceError(
        "memory: got a stream that is being captured into a CUDA graph, whose replays would lose the same packets "
        "again; want a stream that is not");
  }
}

void ForeignMemory::change_on_device(const droptest_memory& memory, comm::Tensor elements,
                                     const std::function<void(comm::Tensor)>& change) {
  check_device(memory);
  const DeviceScope scope(memory.device);
  std::unique_ptr<comm::Stream>& stream = streams_[{memory.device, memory.stream}];
  if (stream == nullptr) {
    stream = std::make_unique<comm::Stream>(memory.device, static_cast<cudaStream_t>(memory.stream));
  }
  elements.stream = stream.get();
  change(elements);
}

}  // namespace droptest::api
