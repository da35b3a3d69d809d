// SPDX-License-Identifier: Apache-2.0
// The state behind the fake calls of CUDA: devices, streams, events, and errors that tests have planned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fake_cuda/block_runner.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/memory.h"

namespace droptest::fake_cuda {

struct Queue;

// The device's clock is artificial: each item of work takes 2 microseconds, plus 1 nanosecond for each thread of a
// kernel, each thousand multiplications of a GEMM, or each thousand bytes of a copy.
inline constexpr double kWorkMicroseconds = 2;

/// One item of work on a stream. If `awaited` is set, the item runs that stream up to its first `position` items;
/// otherwise it runs a function. Awaited queues are shared by their stream and by the streams that wait for it, in any
/// order of destruction.
struct Work {
  std::string name;
  std::function<void()> run;
  std::shared_ptr<Queue> awaited;
  std::uint64_t position = 0;
  double microseconds = kWorkMicroseconds;  // duration on the device's clock
};

struct Queue {
  int device = 0;
  bool waits_for_default = false;  // true for a stream without cudaStreamNonBlocking
  std::deque<Work> waiting;
  std::uint64_t given = 0;
  std::uint64_t done = 0;
  int queries = 0;                        // calls of cudaStreamQuery since the stream last ran
  double microseconds = 0;                // the device's clock when `done` items were done
  std::map<std::uint64_t, double> times;  // times of the positions of events that are done
};

struct Event {
  int device = 0;
  std::shared_ptr<Queue> queue;  // null until it is recorded; shared with the stream, which may be destroyed first
  std::uint64_t position = 0;
  int queries = 0;
};

/// The state of the fake runtime. Thread safety: functions are called with `mutex` locked.
class Runtime {
 public:
  /// The only runtime of the process, because CUDA's calls have no argument that could name it.
  static Runtime& instance();

  std::mutex mutex;
  Settings settings;
  Memory memory;
  BlockRunner runner;

  /// Counts the call. Returns the error that a test has planned for it, or 0.
  int begin(std::string_view function);
  std::uint64_t calls(std::string_view function) const;
  std::uint64_t launches(std::string_view name) const;
  std::uint64_t all_launches() const { return launches_; }
  std::uint64_t products_by(int algorithm) const;
  std::uint64_t synchronizations() const { return synchronizations_; }
  void plan_call_error(std::string_view function, int nth, int error);
  void plan_kernel_error(std::string_view name, int error) { kernel_errors_[std::string(name)] = error; }
  /// The error that broke the device, or cudaSuccess.
  cudaError_t broken(int device) const;
  void reset();

  cudaStream_t create_stream(int device, bool waits_for_default);
  bool destroy_stream(cudaStream_t stream);
  /// The queue of a stream; null if there is no such stream. The default stream is that of the calling thread's current
  /// device.
  std::shared_ptr<Queue> queue_of(cudaStream_t stream);
  cudaEvent_t create_event(int device);
  bool destroy_event(cudaEvent_t event);
  Event* event_of(cudaEvent_t event);
  std::size_t live_streams() const { return streams_.size(); }
  std::size_t live_events() const { return events_.size(); }
  std::size_t unfinished_work() const;

  void push(const std::shared_ptr<Queue>& queue, Work work);
  void push_kernel(const std::shared_ptr<Queue>& queue, Kernel kernel);
  /// Runs only the stream's work up to a position, and the work that it waits for.
  void run_to(Queue& queue, std::uint64_t position);
  void run_device(int device);
  void count_synchronization() { ++synchronizations_; }
  void count_product(int algorithm) { ++products_by_[algorithm]; }

 private:
  void run_kernel(const Kernel& kernel, const Settings& settings, int device);
  void after_work();

  std::map<cudaStream_t, std::shared_ptr<Queue>> streams_;  // shared with events and waits, see Work
  std::map<int, std::shared_ptr<Queue>> default_streams_;
  std::vector<std::shared_ptr<Queue>> left_;  // work of destroyed streams
  std::map<cudaEvent_t, std::unique_ptr<Event>> events_;
  std::map<std::string, std::uint64_t, std::less<>> calls_;
  std::map<std::string, std::uint64_t, std::less<>> launches_of_;
  std::uint64_t launches_ = 0;
  std::map<int, std::uint64_t> products_by_;
  std::uint64_t synchronizations_ = 0;
  struct PlannedError {
    int calls_before = 0;
    int error = 0;
  };
  std::map<std::string, std::vector<PlannedError>, std::less<>> planned_;
  std::map<std::string, int, std::less<>> kernel_errors_;
  std::map<int, cudaError_t> broken_;
};

/// The calling thread's current device.
int current_device();
void set_current_device(int device);

}  // namespace droptest::fake_cuda
