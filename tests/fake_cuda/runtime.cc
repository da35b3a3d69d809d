// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/runtime.h"

#include <algorithm>
#include <utility>

#include "tests/fake_cuda/device_side.h"
#include "tests/fake_cuda/failure.h"
#include "tests/fake_cuda/kernel_queue.h"

namespace droptest::fake_cuda {
namespace {

thread_local int device_of_thread = 0;  // CUDA's current device is the thread's, too

constexpr std::uint64_t kMostBlocks = 0x7FFFFFFF;
constexpr unsigned kMostThreads = 1024;
constexpr std::size_t kMostSharedBytes = std::size_t{99} << 10U;  // every GPU since sm_80 has this much

template <class Map>
std::uint64_t count_in(const Map& counts, std::string_view name) {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

}  // namespace

int current_device() { return device_of_thread; }
void set_current_device(int device) { device_of_thread = device; }

Runtime& Runtime::instance() {
  static Runtime* const runtime = new Runtime;  // never destroyed: threads may still call at the end of the program
  return *runtime;
}

int Runtime::begin(std::string_view function) {
  ++calls_[std::string(function)];
  const auto found = planned_.find(function);
  if (found == planned_.end()) return 0;
  int error = 0;
  for (PlannedError& planned : found->second) {
    if (planned.calls_before-- == 0) error = planned.error;
  }
  return error;
}

std::uint64_t Runtime::calls(std::string_view function) const { return count_in(calls_, function); }
std::uint64_t Runtime::launches(std::string_view name) const { return count_in(launches_of_, name); }

std::uint64_t Runtime::products_by(int algorithm) const {
  const auto found = products_by_.find(algorithm);
  return found == products_by_.end() ? 0 : found->second;
}

void Runtime::plan_call_error(std::string_view function, int nth, int error) {
  if (nth < 1) fail("fail_call: got call " + std::to_string(nth) + ", want 1 (the next one) or more");
  planned_[std::string(function)].push_back({nth - 1, error});
}

cudaError_t Runtime::broken(int device) const {
  const auto found = broken_.find(device);
  return found == broken_.end() ? cudaSuccess : found->second;
}

void Runtime::reset() {
  settings = Settings{};
  calls_.clear();
  launches_of_.clear();
  products_by_.clear();
  launches_ = 0;
  synchronizations_ = 0;
  planned_.clear();
  kernel_errors_.clear();
  broken_.clear();
}

cudaStream_t Runtime::create_stream(int device, bool waits_for_default) {
  auto queue = std::make_shared<Queue>();
  queue->device = device;
  queue->waits_for_default = waits_for_default;
  const auto handle = reinterpret_cast<cudaStream_t>(queue.get());
  streams_.emplace(handle, std::move(queue));
  return handle;
}

bool Runtime::destroy_stream(cudaStream_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return false;
  if (!found->second->waiting.empty()) left_.push_back(found->second);
  streams_.erase(found);
  return true;
}

std::shared_ptr<Queue> Runtime::queue_of(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    std::shared_ptr<Queue>& queue = default_streams_[device_of_thread];
    if (!queue) {
      queue = std::make_shared<Queue>();
      queue->device = device_of_thread;
    }
    return queue;
  }
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

cudaEvent_t Runtime::create_event(int device) {
  auto event = std::make_unique<Event>();
  event->device = device;
  const auto handle = reinterpret_cast<cudaEvent_t>(event.get());
  events_.emplace(handle, std::move(event));
  return handle;
}

bool Runtime::destroy_event(cudaEvent_t event) { return events_.erase(event) > 0; }

Event* Runtime::event_of(cudaEvent_t event) {
  const auto found = events_.find(event);
  return found == events_.end() ? nullptr : found->second.get();
}

std::size_t Runtime::unfinished_work() const {
  std::size_t count = 0;
  for (const auto& [handle, queue] : streams_) count += queue->waiting.size();
  for (const auto& queue : left_) count += queue->waiting.size();
  return count;
}

// The default stream waits for all other streams, and streams without cudaStreamNonBlocking wait for it, so it is never
// behind.
void Runtime::push(const std::shared_ptr<Queue>& queue, Work work) {
  queue->waiting.push_back(std::move(work));
  ++queue->given;
  if (default_streams_[queue->device] != queue) return;
  for (const auto& [handle, other] : streams_) {
    if (other->device == queue->device && other->waits_for_default) run_to(*other, other->given);
  }
  run_to(*queue, queue->given);
}

void Runtime::push_kernel(const std::shared_ptr<Queue>& queue, Kernel kernel) {
  ++launches_;
  ++launches_of_[kernel.name];
  Work work;
  work.name = "kernel " + kernel.name;
  work.microseconds += 1e-3 * static_cast<double>(kernel.blocks) * kernel.threads;
  work.run = [this, kernel = std::move(kernel), at_launch = settings, device = queue->device] {
    run_kernel(kernel, at_launch, device);
  };
  push(queue, std::move(work));
}

void Runtime::run_kernel(const Kernel& kernel, const Settings& at_launch, int device) {
  const auto planned = kernel_errors_.find(kernel.name);
  if (planned != kernel_errors_.end()) {
    broken_[device] = static_cast<cudaError_t>(planned->second);
    kernel_errors_.erase(planned);
    return;
  }
  runner.run(kernel, at_launch);
}

// Work is only awaited after it was given, so a chain of waits comes to an end.
void Runtime::run_to(Queue& queue, std::uint64_t position) {
  while (queue.done < position) {
    const Work work = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    if (work.awaited) {
      run_to(*work.awaited, work.position);
      queue.microseconds = std::max(queue.microseconds, work.awaited->times.at(work.position));
    } else if (broken(queue.device) == cudaSuccess) {
      work.run();
      memory.check_canaries(work.name);
      queue.microseconds += work.microseconds;
    }
    ++queue.done;
    if (const auto event = queue.times.find(queue.done); event != queue.times.end()) event->second = queue.microseconds;
  }
  after_work();
}

void Runtime::run_device(int device) {
  for (const auto& [handle, queue] : streams_) {
    if (queue->device == device) run_to(*queue, queue->given);
  }
  for (const auto& queue : left_) {
    if (queue->device == device) run_to(*queue, queue->given);
  }
  left_.erase(std::remove_if(left_.begin(), left_.end(), [](const auto& queue) { return queue->waiting.empty(); }),
              left_.end());
}

void Runtime::after_work() {
  if (unfinished_work() == 0) memory.forget_freed();
}

cudaError_t queue_kernel(std::string_view name, std::uint64_t blocks, unsigned threads, std::size_t shared_bytes,
                         cudaStream_t stream, std::function<void()> thread) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  if (const int planned = runtime.begin("cudaLaunchKernel")) return static_cast<cudaError_t>(planned);
  const std::shared_ptr<Queue> queue = runtime.queue_of(stream);
  if (!queue || queue->device != current_device()) return cudaErrorInvalidResourceHandle;
  if (runtime.broken(queue->device) != cudaSuccess) return runtime.broken(queue->device);
  if (threads == 0 || threads > kMostThreads || blocks > kMostBlocks) return cudaErrorInvalidConfiguration;
  if (shared_bytes > kMostSharedBytes) return cudaErrorInvalidValue;
  if (threads % 32 != 0)
    fail("kernel " + std::string(name) + ": got " + std::to_string(threads) +
         " threads a block, want a multiple of 32");
  runtime.push_kernel(queue, {std::string(name), blocks, threads, shared_bytes, std::move(thread)});
  return cudaSuccess;
}

// Kernels run with the lock held, by whichever host thread waits for them.
void sync_block() { Runtime::instance().runner.sync_block(); }
void sync_warp(unsigned mask) { Runtime::instance().runner.sync_warp(mask); }
std::uint64_t shuffle_bits(Shuffle kind, unsigned mask, std::uint64_t bits, int operand, int width) {
  return Runtime::instance().runner.shuffle(kind, mask, bits, operand, width);
}
unsigned char* dynamic_shared_memory() { return Runtime::instance().runner.shared_memory(); }
void check_tile(const void* tile, unsigned row_elems, std::size_t elem_bytes) {
  if (reinterpret_cast<std::uintptr_t>(tile) % 32 != 0) {
    Runtime::instance().runner.fail_thread("a matrix tile is at an address that is no multiple of 32 bytes");
  }
  if (row_elems * elem_bytes % 16 != 0) {
    Runtime::instance().runner.fail_thread("a matrix tile's rows are " + std::to_string(row_elems) +
                                           " elements apart, want a multiple of 16 bytes");
  }
}

}  // namespace droptest::fake_cuda
