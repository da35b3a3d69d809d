// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/fake_cuda.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/fake_cuda/device_array.h"
#include "tests/fake_cuda/kernel_queue.h"

namespace droptest::fake_cuda::fake_cuda_test {
namespace {

class NewStream {
 public:
  NewStream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~NewStream() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  NewStream(const NewStream&) = delete;
  NewStream& operator=(const NewStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaStream_t stream_ = nullptr;
};

class NewEvent {
 public:
  NewEvent() { EXPECT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess); }
  ~NewEvent() { EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess); }
  NewEvent(const NewEvent&) = delete;
  NewEvent& operator=(const NewEvent&) = delete;
  operator cudaEvent_t() const { return event_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaEvent_t event_ = nullptr;
};

// One thread of the first warp does it.
template <class Body>
cudaError_t queue(const char* name, cudaStream_t stream, Body body) {
  return queue_kernel(name, 1, 32, 0, stream, [body, done = false]() mutable {
    if (!done) body();
    done = true;
  });
}

TEST(FakeCuda, WorkRunsWhenSomebodyWaitsForIt) {
  const Scope scope;
  int value = 0;
  const NewStream stream;
  ASSERT_EQ(queue("set", stream, [&value] { value = 1; }), cudaSuccess);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(unfinished_work(), 1U);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(unfinished_work(), 0U);
  EXPECT_EQ(launches("set"), 1U);
  EXPECT_EQ(launches("get"), 0U);
  EXPECT_EQ(launches(), 1U);
  EXPECT_EQ(synchronizations(), 1U);
  EXPECT_EQ(calls("cudaStreamSynchronize"), 1U);
}

TEST(FakeCuda, AStreamThatNobodyWaitsForDoesNotRun) {
  const Scope scope;
  std::string order;
  const NewStream first;
  const NewStream second;
  ASSERT_EQ(queue("a", first, [&order] { order += "a"; }), cudaSuccess);
  ASSERT_EQ(queue("b", second, [&order] { order += "b"; }), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(order, "b");
}

TEST(FakeCuda, AWaitTakesThePointOfTheLastRecord) {
  const Scope scope;
  std::string order;
  const NewStream first;
  const NewStream second;
  const NewEvent event;
  ASSERT_EQ(queue("a", first, [&order] { order += "a"; }), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  ASSERT_EQ(queue("c", first, [&order] { order += "c"; }), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(queue("b", second, [&order] { order += "b"; }), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(order, "ab");
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(order, "abc");
}

TEST(FakeCuda, AnEventNeverRecordedIsNoWait) {
  const Scope scope;
  const NewStream stream;
  const NewEvent event;
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaSuccess);
  EXPECT_EQ(unfinished_work(), 0U);
}

TEST(FakeCuda, WaitsOutliveTheirEventAndStream) {
  const Scope scope;
  std::string order;
  const NewStream second;
  {
    cudaStream_t first = nullptr;
    const NewEvent event;
    ASSERT_EQ(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(queue("a", first, [&order] { order += "a"; }), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
    ASSERT_EQ(cudaStreamDestroy(first), cudaSuccess);
  }
  ASSERT_EQ(queue("b", second, [&order] { order += "b"; }), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(order, "ab");
}

TEST(FakeCuda, APollingLoopEnds) {
  const Scope scope;
  int value = 0;
  const NewStream stream;
  const NewEvent event;
  ASSERT_EQ(queue("set", stream, [&value] { value = 1; }), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  int unready = 0;
  while (cudaEventQuery(event) == cudaErrorNotReady) ++unready;
  EXPECT_EQ(unready, settings().unready_queries);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  unready = 0;
  ASSERT_EQ(queue("set", stream, [&value] { value = 2; }), cudaSuccess);
  while (cudaStreamQuery(stream) == cudaErrorNotReady) ++unready;
  EXPECT_EQ(unready, settings().unready_queries);
  EXPECT_EQ(value, 2);
}

TEST(FakeCuda, PageLockedMemoryIsReadLateOtherMemoryAtOnce) {
  const Scope scope;
  const NewStream stream;
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof(int)), cudaSuccess);
  int pageable = 1;
  *static_cast<int*>(pinned) = 1;
  const DeviceArray<int> from_pageable(1);
  const DeviceArray<int> from_pinned(1);
  ASSERT_EQ(cudaMemcpyAsync(from_pageable.data(), &pageable, sizeof(int), cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(from_pinned.data(), pinned, sizeof(int), cudaMemcpyHostToDevice, stream), cudaSuccess);
  pageable = 2;
  *static_cast<int*>(pinned) = 2;
  EXPECT_EQ(unfinished_work(), 2U);
  int back = 0;
  ASSERT_EQ(cudaMemcpyAsync(&back, from_pageable.data(), sizeof(int), cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(back, 1);
  ASSERT_EQ(cudaMemcpyAsync(&back, from_pinned.data(), sizeof(int), cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(back, 2);
  ASSERT_EQ(cudaMemcpyAsync(pinned, from_pageable.data(), sizeof(int), cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(*static_cast<int*>(pinned), 2);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*static_cast<int*>(pinned), 1);
  ASSERT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

// The host's memory may be anything by the time of the copy, even a device's: the C library hands out again the memory
// that was freed last.
TEST(FakeCuda, CopiedHostMemoryMayBeFreedAtOnce) {
  const Scope scope;
  const NewStream stream;
  const DeviceArray<int> to(1);
  std::vector<std::unique_ptr<DeviceArray<char>>> later;
  for (int i = 0; i < 100; ++i) {
    void* const from = std::aligned_alloc(256, 3328);
    std::memset(from, i, 3328);
    ASSERT_EQ(cudaMemcpyAsync(to.data(), static_cast<char*>(from) + 512, 4, cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    std::free(from);
    later.push_back(std::make_unique<DeviceArray<char>>(2800));
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(to.host(), std::vector<int>{99 * 0x01010101});
}

TEST(FakeCuda, CopiesOfTheWrongDirectionAreRefused) {
  const Scope scope;
  int host = 0;
  const DeviceArray<int> array(2);
  EXPECT_EQ(cudaMemcpy(array.data(), &host, sizeof(int), cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(&host, array.data(), sizeof(int), cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(array.data(), &host, sizeof(int), cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(array.data() + 1, array.data(), sizeof(int), cudaMemcpyDeviceToDevice), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(FakeCuda, FreshMemoryIsNaN) {
  const Scope scope;
  const DeviceArray<float> array(3);
  for (const float x : array.host()) EXPECT_TRUE(std::isnan(x));
}

TEST(FakeCuda, MemorySetOnTheDeviceIsSetLate) {
  const Scope scope;
  const NewStream stream;
  const DeviceArray<int> array(std::vector<int>{5, 6});
  ASSERT_EQ(cudaMemsetAsync(array.data(), 0, sizeof(int), stream), cudaSuccess);
  EXPECT_EQ(array.host(), (std::vector<int>{5, 6}));
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(array.host(), (std::vector<int>{0, 6}));
}

TEST(FakeCudaDeathTest, WritesBesideAnAllocationAreNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Scope scope;
  const NewStream stream;
  const DeviceArray<char> array(5);
  char* data = array.data();
  const auto run = [&](int offset) {
    ASSERT_EQ(queue("writer", stream, [=] { data[offset] = 0; }), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  };
  run(4);
  EXPECT_DEATH(run(5), "kernel writer: bytes behind allocation [0-9]+ .5 bytes on device 0. were overwritten, from 0");
  EXPECT_DEATH(run(-1), "kernel writer: bytes before allocation");
  EXPECT_DEATH(cudaMemset(data + 1, 0, 5), "cudaMemset uses bytes 1 to 6 of allocation [0-9]+ .5 bytes");
}

TEST(FakeCudaDeathTest, FreedMemoryThatQueuedWorkUsesIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Scope scope;
  const auto copy_freed = [] {
    const NewStream stream;
    const DeviceArray<int> to(1);
    DeviceArray<int> from(1);
    cudaMemcpyAsync(to.data(), from.data(), sizeof(int), cudaMemcpyDeviceToDevice, stream);
    cudaFree(from.data());
    cudaStreamSynchronize(stream);
  };
  EXPECT_DEATH(copy_freed(), "cudaMemcpyAsync uses allocation [0-9]+ .4 bytes on device 0. after its free");
  const auto write_freed = [] {
    const NewStream stream;
    const DeviceArray<int> array(1);
    int* data = array.data();
    queue("writer", stream, [=] { *data = 1; });
    cudaFree(data);
    cudaStreamSynchronize(stream);
  };
  EXPECT_DEATH(write_freed(), "kernel writer: allocation [0-9]+ .* was written to after its free");
  const auto free_twice = [] {
    const NewStream stream;
    const DeviceArray<int> array(1);
    queue("idle", stream, [] {});
    cudaFree(array.data());
    cudaFree(array.data());
  };
  EXPECT_DEATH(free_twice(), "is freed twice");
}

TEST(FakeCuda, MemoryRunsOut) {
  Settings small;
  small.memory_bytes = 1000;
  const Scope scope(small);
  void* first = nullptr;
  void* second = nullptr;
  ASSERT_EQ(cudaMalloc(&first, 600), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 600), cudaErrorMemoryAllocation);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(free_bytes, 400U);
  EXPECT_EQ(total_bytes, 1000U);
  EXPECT_EQ(live_allocations(), 1U);
  EXPECT_EQ(live_bytes(), 600U);
  ASSERT_EQ(cudaFree(first), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&second, 600), cudaSuccess);
  ASSERT_EQ(cudaFree(second), cudaSuccess);
  EXPECT_EQ(live_allocations(), 0U);
}

TEST(FakeCuda, CallsFailAsPlanned) {
  const Scope scope;
  fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  fail_call("cudaLaunchKernel", 1, cudaErrorLaunchOutOfResources);
  const NewStream stream;
  EXPECT_EQ(queue("idle", stream, [] {}), cudaErrorLaunchOutOfResources);
  EXPECT_EQ(queue("idle", stream, [] {}), cudaSuccess);
}

TEST(FakeCuda, AKernelBreaksTheDeviceAsPlanned) {
  const Scope scope;
  const NewStream stream;
  bool ran = false;
  fail_kernel("bad", cudaErrorIllegalAddress);
  ASSERT_EQ(queue("bad", stream, [&ran] { ran = true; }), cudaSuccess);
  ASSERT_EQ(queue("good", stream, [&ran] { ran = true; }), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(queue("good", stream, [] {}), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_FALSE(ran);
  reset();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(FakeCuda, ShapesThatNoDeviceTakesAreRefused) {
  const Scope scope;
  const NewStream stream;
  EXPECT_EQ(queue_kernel("k", 1, 1056, 0, stream, [] {}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(queue_kernel("k", 1, 0, 0, stream, [] {}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(queue_kernel("k", std::uint64_t{1} << 31U, 32, 0, stream, [] {}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(queue_kernel("k", 1, 32, 100 << 10, stream, [] {}), cudaErrorInvalidValue);
}

TEST(FakeCuda, EventsHaveTheTimesOfAMadeUpClock) {
  const Scope scope;
  const NewStream first;
  const NewStream second;
  const NewEvent begin;
  const NewEvent middle;
  const NewEvent end;
  const NewEvent of_second;
  float milliseconds = -1;
  ASSERT_EQ(cudaEventRecord(begin, first), cudaSuccess);
  ASSERT_EQ(queue_kernel("small", 1, 32, 0, first, [] {}), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(middle, first), cudaSuccess);
  ASSERT_EQ(queue_kernel("large", 10, 1000 / 32 * 32, 0, first, [] {}), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(end, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, middle, 0), cudaSuccess);
  ASSERT_EQ(queue("after", second, [] {}), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(of_second, second), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, middle), cudaErrorNotReady);
  ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
  ASSERT_EQ(cudaEventElapsedTime(&milliseconds, begin, middle), cudaSuccess);
  EXPECT_FLOAT_EQ(milliseconds, 2.032e-3F);
  ASSERT_EQ(cudaEventElapsedTime(&milliseconds, middle, end), cudaSuccess);
  EXPECT_FLOAT_EQ(milliseconds, 11.92e-3F);
  ASSERT_EQ(cudaEventSynchronize(of_second), cudaSuccess);
  ASSERT_EQ(cudaEventElapsedTime(&milliseconds, begin, of_second), cudaSuccess);
  EXPECT_FLOAT_EQ(milliseconds, 2.032e-3F + 2.032e-3F) << "the stream went on when the awaited one was there";
}

TEST(FakeCuda, DevicesAreCountedAndChosenByThread) {
  Settings two;
  two.devices = 2;
  const Scope scope(two);
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  int other = -1;
  std::thread([&other] { cudaGetDevice(&other); }).join();
  EXPECT_EQ(other, 0);
  {
    const NewStream on_second;
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(queue("elsewhere", on_second, [] {}), cudaErrorInvalidResourceHandle);
    const NewEvent on_first;
    EXPECT_EQ(cudaEventRecord(on_first, on_second), cudaErrorInvalidResourceHandle);
  }
  two.devices = 0;
  configure(two);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 4), cudaErrorNoDevice);
}

TEST(FakeCuda, ThreadsWithTheirOwnStreamsDoNotDisturbEachOther) {
  const Scope scope;
  std::vector<std::thread> threads;
  std::vector<int> results(4);
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([rank, &results] {
      const NewStream stream;
      const DeviceArray<int> array(64);
      int* data = array.data();
      for (int round = 0; round < 50; ++round) {
        ASSERT_EQ(queue("write", stream,
                        [=] {
                          for (int i = 0; i < 64; ++i) data[i] = rank * 1000 + round;
                        }),
                  cudaSuccess);
        ASSERT_EQ(cudaMemcpyAsync(&results[rank], data + round, sizeof(int), cudaMemcpyDeviceToHost, stream),
                  cudaSuccess);
        ASSERT_EQ(results[rank], rank * 1000 + round);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(live_allocations(), 0U);
  EXPECT_EQ(live_streams(), 0U);
}

}  // namespace
}  // namespace droptest::fake_cuda::fake_cuda_test
