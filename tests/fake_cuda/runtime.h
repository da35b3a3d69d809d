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

// The device's clock is made up: each thing takes 2 microseconds, a thread of a kernel 1 nanosecond in addition, and a
// thousand multiplications of a product, or bytes of a copy, another one.
inline constexpr double kWorkMicroseconds = 2;

/// One thing on a stream: something to run, or, where `awaited` is set, to run that stream up to its first `position`
/// things. Awaited queues are shared by their stream and by those who wait for it, in any order of destruction.
struct Work {
  std::string name;
  std::function<void()> run;
  std::shared_ptr<Queue> awaited;
  std::uint64_t position = 0;
  double microseconds = kWorkMicroseconds;  // that it takes on the device's clock
};

struct Queue {
  int device = 0;
  bool waits_for_default = false;  // a stream without cudaStreamNonBlocking
  std::deque<Work> waiting;
  std::uint64_t given = 0;
  std::uint64_t done = 0;
  int queries = 0;                        // by cudaStreamQuery since it last ran
  double microseconds = 0;                // on the device's clock, when `done` things were done
  std::map<std::uint64_t, double> times;  // of the positions of events, from when they are done
};

struct Event {
  int device = 0;
  std::shared_ptr<Queue> queue;  // null until it is recorded; shared with the stream, which may go first
  std::uint64_t position = 0;
  int queries = 0;
};

/// Thread safety: its functions are called with `mutex` held.
class Runtime {
 public:
  /// The one of the process: CUDA's calls have no argument that could name it.
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
  /// Null where there is no such stream. The default stream is the calling thread's current device's.
  std::shared_ptr<Queue> queue_of(cudaStream_t stream);
  cudaEvent_t create_event(int device);
  bool destroy_event(cudaEvent_t event);
  Event* event_of(cudaEvent_t event);
  std::size_t live_streams() const { return streams_.size(); }
  std::size_t live_events() const { return events_.size(); }
  std::size_t unfinished_work() const;

  void push(const std::shared_ptr<Queue>& queue, Work work);
  void push_kernel(const std::shared_ptr<Queue>& queue, Kernel kernel);
  /// Runs the stream's work up to a position, and the work that it waits for; nothing else.
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
