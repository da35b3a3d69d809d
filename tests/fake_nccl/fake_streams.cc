// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_nccl/fake_streams.h"

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace droptest::fake_nccl {
namespace {

struct FakeEvent {
  std::shared_ptr<std::chrono::steady_clock::time_point> time;  // when it is reached; shared with the stream's work
  std::shared_ptr<FakeStream> stream;  // null until it is recorded; shared with the stream's handle, which may go first
  std::uint64_t position = 0;
};

// CUDA's calls have no argument that could name it.
struct Runtime {
  std::mutex mutex;
  int devices = 1;
  std::map<cudaStream_t, std::shared_ptr<FakeStream>> streams;
  std::map<cudaEvent_t, std::unique_ptr<FakeEvent>> events;
  std::set<void*> allocations;
};

Runtime& runtime() {
  static Runtime* const instance = new Runtime;  // threads may still call at the end of the program
  return *instance;
}

thread_local int device_of_thread = 0;  // thread-local, like CUDA's current device
thread_local int captures_of_thread = 0;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

// Whether a call would break the capture of a stream by this thread.
bool is_unsafe() { return captures_of_thread > 0 && capture_mode != cudaStreamCaptureModeRelaxed; }

using FakeGraph = std::vector<std::function<void()>>;

FakeEvent event_of(cudaEvent_t event) {
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().events.find(event);
  if (found == runtime().events.end()) throw std::logic_error("fake CUDA: no such event");
  return *found->second;
}

}  // namespace

FakeStream::FakeStream(int device) : device_(device), thread_([this] { work(); }) {}

FakeStream::~FakeStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FakeStream::put(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (captured_) return captured_->push_back(std::move(work));
  waiting_.push_back(std::move(work));
  ++given_;
  changed_.notify_all();
}

void FakeStream::begin_capture() {
  const std::lock_guard lock(mutex_);
  captured_.emplace();
}

std::vector<std::function<void()>> FakeStream::end_capture() {
  const std::lock_guard lock(mutex_);
  std::vector<std::function<void()>> graph = std::move(captured_.value());
  captured_.reset();
  return graph;
}

bool FakeStream::is_captured() const {
  const std::lock_guard lock(mutex_);
  return captured_.has_value();
}

std::uint64_t FakeStream::given() const {
  const std::lock_guard lock(mutex_);
  return given_;
}

bool FakeStream::has_done(std::uint64_t position) const {
  const std::lock_guard lock(mutex_);
  return done_ >= position;
}

void FakeStream::wait_until_done(std::uint64_t position) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= position; });
}

void FakeStream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<void()> next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    next();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

std::shared_ptr<FakeStream> stream_of(cudaStream_t handle) {
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().streams.find(handle);
  if (found == runtime().streams.end()) throw std::logic_error("fake CUDA: no such stream");
  return found->second;
}

void set_devices(int count) {
  const std::lock_guard lock(runtime().mutex);
  runtime().devices = count;
}

int current_device() { return device_of_thread; }

std::size_t live_allocations() {
  const std::lock_guard lock(runtime().mutex);
  return runtime().allocations.size();
}

std::size_t live_streams() {
  const std::lock_guard lock(runtime().mutex);
  return runtime().streams.size();
}

std::size_t live_events() {
  const std::lock_guard lock(runtime().mutex);
  return runtime().events.size();
}

}  // namespace droptest::fake_nccl

namespace fake = droptest::fake_nccl;

extern "C" {

const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaErrorFake"; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "fake error"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  const std::lock_guard lock(fake::runtime().mutex);
  *count = fake::runtime().devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device) {
  const std::lock_guard lock(fake::runtime().mutex);
  if (device < 0 || device >= fake::runtime().devices) return cudaErrorInvalidDevice;
  fake::device_of_thread = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = fake::device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = *total_bytes = std::size_t{1} << 30U;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  if (fake::is_unsafe()) return cudaErrorStreamCaptureUnsupported;
  *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*data, 0x5a, bytes);
  const std::lock_guard lock(fake::runtime().mutex);
  fake::runtime().allocations.insert(*data);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  {
    const std::lock_guard lock(fake::runtime().mutex);
    if (fake::runtime().allocations.erase(data) == 0) return cudaErrorInvalidValue;
  }
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, std::size_t bytes) { return cudaMalloc(data, bytes); }
cudaError_t cudaFreeHost(void* data) { return cudaFree(data); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  const auto stream = fake::stream_of(handle);
  if (kind == cudaMemcpyHostToDevice) {  // the host memory is not page-locked, so it may change when the call returns
    std::vector<std::byte> copy(static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes);
    stream->put([to, copy = std::move(copy)] { std::memcpy(to, copy.data(), copy.size()); });
    return cudaSuccess;
  }
  stream->put([to, from, bytes] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  fake::stream_of(handle)->put([to, value, bytes] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned /*flags*/) {
  auto stream = std::make_shared<fake::FakeStream>(fake::device_of_thread);
  *handle = reinterpret_cast<cudaStream_t>(stream.get());
  const std::lock_guard lock(fake::runtime().mutex);
  fake::runtime().streams.emplace(*handle, std::move(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  std::shared_ptr<fake::FakeStream> last;  // ends, where nobody else holds it, without the lock
  const std::lock_guard lock(fake::runtime().mutex);
  const auto found = fake::runtime().streams.find(handle);
  if (found == fake::runtime().streams.end()) return cudaErrorInvalidResourceHandle;
  last = std::move(found->second);
  fake::runtime().streams.erase(found);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const auto stream = fake::stream_of(handle);
  if (stream->is_captured()) return cudaErrorStreamCaptureUnsupported;
  stream->wait_until_done(stream->given());
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const auto stream = fake::stream_of(handle);
  return stream->has_done(stream->given()) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
  if (fake::is_unsafe()) return cudaErrorStreamCaptureUnsupported;
  std::vector<std::shared_ptr<fake::FakeStream>> streams;
  {
    const std::lock_guard lock(fake::runtime().mutex);
    for (const auto& [handle, stream] : fake::runtime().streams) {
      if (stream->device() == fake::device_of_thread) streams.push_back(stream);
    }
  }
  for (const auto& stream : streams) stream->wait_until_done(stream->given());
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, fake::capture_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode /*mode*/) {
  fake::stream_of(handle)->begin_capture();
  ++fake::captures_of_thread;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  --fake::captures_of_thread;
  *graph = reinterpret_cast<cudaGraph_t>(new fake::FakeGraph(fake::stream_of(handle)->end_capture()));
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* /*graph*/, const cudaGraphNode_t** /*dependencies*/,
                                     const cudaGraphEdgeData** /*edges*/, std::size_t* /*count*/) {
  const bool captured = fake::stream_of(handle)->is_captured();
  *status = captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = captured ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long /*flags*/) {
  *exec = reinterpret_cast<cudaGraphExec_t>(new fake::FakeGraph(*reinterpret_cast<fake::FakeGraph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  for (const auto& work : *reinterpret_cast<fake::FakeGraph*>(exec)) fake::stream_of(handle)->put(work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<fake::FakeGraph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<fake::FakeGraph*>(exec);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned /*flags*/) {
  const fake::FakeEvent point = fake::event_of(event);
  if (point.stream != nullptr) {
    // Events of before the capture; the double records none within one.
    if (fake::stream_of(handle)->is_captured()) return cudaErrorStreamCaptureIsolation;
    fake::stream_of(handle)->put([point] { point.stream->wait_until_done(point.position); });
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  auto made = std::make_unique<fake::FakeEvent>();
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  const std::lock_guard lock(fake::runtime().mutex);
  fake::runtime().events.emplace(*event, std::move(made));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(fake::runtime().mutex);
  return fake::runtime().events.erase(event) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  const auto stream = fake::stream_of(handle);
  const std::lock_guard lock(fake::runtime().mutex);
  const auto found = fake::runtime().events.find(event);
  if (found == fake::runtime().events.end()) return cudaErrorInvalidResourceHandle;
  auto time = std::make_shared<std::chrono::steady_clock::time_point>();
  stream->put([time] { *time = std::chrono::steady_clock::now(); });
  *found->second = {time, stream, stream->given()};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const fake::FakeEvent point = fake::event_of(event);
  return point.stream == nullptr || point.stream->has_done(point.position) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const fake::FakeEvent point = fake::event_of(event);
  if (point.stream != nullptr) point.stream->wait_until_done(point.position);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const fake::FakeEvent first = fake::event_of(start);
  const fake::FakeEvent last = fake::event_of(end);
  for (const fake::FakeEvent* point : {&first, &last}) {
    if (point->stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (!point->stream->has_done(point->position)) return cudaErrorNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(*last.time - *first.time).count();
  return cudaSuccess;
}

}  // extern "C"
