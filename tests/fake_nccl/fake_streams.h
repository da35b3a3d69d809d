// SPDX-License-Identifier: Apache-2.0
// A test double of the calls of CUDA's runtime that move data between ranks. Device memory is host memory, and each
// stream is a thread that does its work in order. So ranks that are threads of one process can wait for each other on
// their streams, as GPUs do. It defines CUDA's own symbols and is linked instead of CUDA.
//
// A stream can be captured into a graph. During the capture, its thread must not wait for the stream or the device, and
// must not allocate unless it exchanges its capture mode. A capture has the work of one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace droptest::fake_nccl {

/// A queue of work and the thread that does it.
class FakeStream {
 public:
  explicit FakeStream(int device);
  /// Waits for the work.
  ~FakeStream();
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  int device() const { return device_; }
  /// Puts work on the stream, or into the graph while the stream is captured.
  void put(std::function<void()> work);
  /// Begins a capture: work that is put from now on until end_capture() is not done.
  void begin_capture();
  std::vector<std::function<void()>> end_capture();
  bool is_captured() const;
  std::uint64_t given() const;
  bool has_done(std::uint64_t position) const;
  void wait_until_done(std::uint64_t position) const;

 private:
  void work();

  const int device_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::optional<std::vector<std::function<void()>>> captured_;
  std::uint64_t given_ = 0;
  std::uint64_t done_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

/// The stream of CUDA's handle; it lives as long as somebody shares it. Throws: std::logic_error for a handle that is
/// no stream.
std::shared_ptr<FakeStream> stream_of(cudaStream_t handle);

/// Sets the number of devices that each process sees from now on.
void set_devices(int count);

int current_device();

std::size_t live_allocations();
std::size_t live_streams();
std::size_t live_events();

}  // namespace droptest::fake_nccl
