// SPDX-License-Identifier: Apache-2.0
#include "api/nccl/device_memory.h"

#include <string>

#include "comm/device/cuda_error.h"
#include "sim/error.h"

namespace droptest::nccl_shim {
namespace {

// While a thread captures a stream, CUDA refuses calls that could have become part of the graph, unless the thread says
// that they have nothing to do with it.
class OutsideOfCapture {
 public:
  OutsideOfCapture() { comm::check_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "capture mode"); }
  ~OutsideOfCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideOfCapture(const OutsideOfCapture&) = delete;
  OutsideOfCapture& operator=(const OutsideOfCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

DeviceScope::DeviceScope(int device) {
  comm::check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
  differs_ = before_ != device;
  if (differs_) comm::check_cuda(cudaSetDevice(device), "cudaSetDevice");
}

DeviceScope::~DeviceScope() {
  if (differs_) cudaSetDevice(before_);
}

unsigned long long capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  comm::check_cuda(cudaStreamGetCaptureInfo(stream, &status, &capture), "cudaStreamGetCaptureInfo");
  return status == cudaStreamCaptureStatusActive ? capture : 0;
}

Event::Event() {
  comm::check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

Event::~Event() { cudaEventDestroy(event_); }

void Event::record(cudaStream_t stream) { comm::check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }

void Event::is_waited_for_by(cudaStream_t stream) const {
  comm::check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
}

DeviceBytes::DeviceBytes(std::size_t bytes) : bytes_(bytes) {
  const OutsideOfCapture outside;
  void* data = nullptr;
  comm::check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
  comm::check_cuda(cudaMalloc(&data, bytes), "memory of " + std::to_string(bytes) + " bytes for losses");
  data_ = static_cast<std::byte*>(data);
}

DeviceBytes::~DeviceBytes() { cudaFree(data_); }

void DeviceBytes::write(std::span<const std::byte> bytes) const {
  copy(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
}

void DeviceBytes::read(std::span<std::byte> bytes) const {
  copy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost);
}

// Copies do not use the default stream, which waits for all others and is refused during a capture.
void DeviceBytes::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) const {
  DROPTEST_CHECK(bytes <= bytes_, "a copy of more bytes than there are");
  const OutsideOfCapture outside;
  const DeviceScope scope(device_);
  cudaStream_t stream = nullptr;
  comm::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const cudaError_t copied = cudaMemcpyAsync(to, from, bytes, kind, stream);
  const cudaError_t done = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  comm::check_cuda(copied, "cudaMemcpyAsync");
  comm::check_cuda(done, "cudaStreamSynchronize");
}

}  // namespace droptest::nccl_shim
