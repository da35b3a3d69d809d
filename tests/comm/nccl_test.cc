// SPDX-License-Identifier: Apache-2.0
// The NCCL backend over the test double of NCCL: its ranks are threads, whose devices and streams are the double's.
// The ranks' messages on the host go over Gloo's real connections.
#include "comm/nccl/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/device_tensor.h"
#include "comm/nccl/nccl_backend.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "tests/comm/conformance.h"
#include "tests/comm/nccl_fixture.h"
#include "tests/comm/nccl_ranks.h"
#include "tests/comm/started_programs.h"
#include "tests/comm/through_device.h"
#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/fake_streams.h"

namespace droptest::comm::nccl_test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Message kGrad{sim::TrafficClass::kTpBackward, "grad.wte", -1};

using Nccl = NcclTest;

std::vector<std::string> local_digests(int world_size, std::uint64_t (*check)(Communicator&)) {
  std::vector<std::string> digests(static_cast<std::size_t>(world_size));
  run_ranks(world_size, 60s, [&](Communicator& communicator) {
    digests[static_cast<std::size_t>(communicator.rank())] = std::to_string(check(communicator));
  });
  return digests;
}

/// Runs a check on device memory, and compares its digests with those of the local backend on the host.
void expect_local_digests(int world_size, std::uint64_t (*check)(Communicator&)) {
  SCOPED_TRACE(world_size);
  std::vector<std::string> digests(static_cast<std::size_t>(world_size));
  const auto ends = run_nccl_ranks({.world_size = world_size}, [&](Communicator& communicator, Stream& stream) {
    ThroughDevice through(communicator, stream.device());
    digests[static_cast<std::size_t>(communicator.rank())] = std::to_string(check(through));
  });
  EXPECT_THAT(ends, Each("ok"));
  EXPECT_EQ(digests, local_digests(world_size, check));
}

TEST_F(Nccl, EveryOperationOnTheDeviceGivesTheResultsOfLocal) {
  for (const int world_size : {1, 2, 3, 5}) expect_local_digests(world_size, check_conformance);
}

TEST_F(Nccl, PartsOfASplitDoToo) {
  for (const int world_size : {2, 5}) expect_local_digests(world_size, check_conformance_of_splits);
}

TEST_F(Nccl, StartedProgramsGiveTheResultsOfBlockingOnesOnLocal) {
  for (const int world_size : {1, 2, 3}) {
    expect_local_digests(world_size, check_started_programs_of_any_order);
    std::vector<std::string> digests(static_cast<std::size_t>(world_size));
    const auto ends = run_nccl_ranks({.world_size = world_size}, [&](Communicator& communicator, Stream& /*stream*/) {
      digests[static_cast<std::size_t>(communicator.rank())] = std::to_string(check_started_programs(communicator));
    });
    EXPECT_THAT(ends, Each("ok"));
    EXPECT_EQ(digests, local_digests(world_size, check_started_programs));
  }
}

TEST_F(Nccl, LargeExchangesDoNotDeadlock) { expect_local_digests(2, check_large_exchanges); }

TEST_F(Nccl, CallsThatNcclTakesLateAreWaitedFor) {
  for (const int polls : {0, 2000}) {  // 2000: beyond the looks without a pause
    fake_nccl::reset();
    fake_nccl::set_polls(polls);
    const auto ends = run_nccl_ranks({.world_size = 2}, [](Communicator& communicator, Stream& stream) {
      DeviceBuffer<float> data(2, "data");
      const std::vector<float> values = {1, 2};
      std::vector<float> sums(2);
      copy_to_device(std::span<const float>(values), data.elems(), stream);
      communicator.all_reduce(device_tensor(data.elems(), stream), ReduceOp::kSum, kGrad);
      copy_to_host(DeviceSpan<const float>(data.elems()), std::span(sums), stream);
      stream.synchronize();
      EXPECT_THAT(sums, ElementsAre(2, 4));
    });
    EXPECT_THAT(ends, Each("ok"));
  }
}

TEST_F(Nccl, WhatIsOnTheHostGoesOverTheControlCommunicator) {
  std::vector<std::string> digests(3);
  const auto ends = run_nccl_ranks({.world_size = 3}, [&](Communicator& communicator, Stream& /*stream*/) {
    digests[static_cast<std::size_t>(communicator.rank())] = std::to_string(check_conformance(communicator));
  });
  EXPECT_THAT(ends, Each("ok"));
  EXPECT_EQ(digests, local_digests(3, check_conformance));
  // Only the test of the connections.
  EXPECT_THAT(fake_nccl::calls(0),
              ElementsAre("Send(1 to 1)", "Recv(1 from 1)", "Send(1 to 2)", "Recv(1 from 2)", "GroupEnd", "Finalize"));
}

TEST_F(Nccl, CallsAreMadeInOrderAndNotForNothing) {
  const auto ends = run_nccl_ranks({.world_size = 2}, [](Communicator& communicator, Stream& stream) {
    DeviceBuffer<float> a(6, "a");
    DeviceBuffer<float> b(6, "b");
    zero_on_device(a.elems(), stream);
    const auto in = [&](std::size_t n) { return device_tensor(DeviceSpan<const float>(a.elems().first(n)), stream); };
    const auto out = [&](std::size_t n) { return device_tensor(b.elems().first(n), stream); };
    const std::size_t own = communicator.rank() == 0 ? 1 : 3;
    const std::vector<std::uint64_t> even = {2, 2};
    const std::vector<std::uint64_t> uneven = {1, 3};
    const std::vector<std::uint64_t> none = {0, 0};
    communicator.all_reduce(in(6), out(6), ReduceOp::kMax, kGrad);
    communicator.all_reduce(in(0), out(0), ReduceOp::kSum, kGrad);
    communicator.reduce_scatter(in(4), out(2), even, ReduceOp::kSum, kGrad);
    communicator.reduce_scatter(in(4), out(own), uneven, ReduceOp::kSum, kGrad);
    communicator.all_gather(in(2), out(4), even, kGrad);
    communicator.all_gather(in(own), out(4), uneven, kGrad);
    communicator.all_to_all(in(0), none, out(0), none, kGrad);
    communicator.broadcast(out(6), 1, kGrad);
    stream.synchronize();
  });
  EXPECT_THAT(ends, Each("ok"));
  const auto expected = [](int rank, const std::string& own, const std::string& other) {
    const std::string peer = std::to_string(1 - rank);
    return std::vector<std::string>{"Send(1 to " + peer + ")",
                                    "Recv(1 from " + peer + ")",
                                    "GroupEnd",
                                    "AllReduce(max, 6)",
                                    "ReduceScatter(sum, 2)",
                                    "Reduce(sum, 1, root 0)",
                                    "Reduce(sum, 3, root 1)",
                                    "GroupEnd",
                                    "AllGather(2)",
                                    "Send(" + own + " to " + peer + ")",
                                    "Recv(" + other + " from " + peer + ")",
                                    "GroupEnd",
                                    "Broadcast(6, root 1)",
                                    "Finalize"};
  };
  EXPECT_EQ(fake_nccl::calls(0), expected(0, "1", "3"));
  EXPECT_EQ(fake_nccl::calls(1), expected(1, "3", "1"));
}

TEST_F(Nccl, ACallReturnsWhileTheStreamIsStillBehind) {
  std::atomic<int> waiting = 0;
  std::atomic<bool> open = false;
  const auto ends = run_nccl_ranks({.world_size = 2}, [&](Communicator& communicator, Stream& stream) {
    DeviceBuffer<float> data(1, "data");
    fake_nccl::stream_of(stream.handle())->put([&] {
      while (!open) std::this_thread::sleep_for(1ms);
    });
    const float one = 1;
    copy_to_device(std::span<const float>(&one, 1), data.elems(), stream);
    communicator.all_reduce(device_tensor(data.elems(), stream), ReduceOp::kSum, kGrad);
    // Both ranks reach this place, although neither stream has advanced.
    if (++waiting == 2) open = true;
    float sum = 0;
    copy_to_host(DeviceSpan<const float>(data.elems()), std::span(&sum, 1), stream);
    stream.synchronize();
    EXPECT_EQ(sum, 2);
  });
  EXPECT_THAT(ends, Each("ok"));
}

TEST_F(Nccl, Bfloat16GoesAsItsOwnType) {
  const auto ends = run_nccl_ranks({.world_size = 2}, [](Communicator& communicator, Stream& stream) {
    DeviceBuffer<Bf16> data(1, "data");
    const Bf16 value = to_bf16(communicator.rank() == 0 ? 1.5F : 2.25F);
    copy_to_device(std::span<const Bf16>(&value, 1), data.elems(), stream);
    communicator.all_reduce(device_tensor(data.elems(), stream), ReduceOp::kSum, kGrad);
    Bf16 sum{};
    copy_to_host(DeviceSpan<const Bf16>(data.elems()), std::span(&sum, 1), stream);
    stream.synchronize();
    EXPECT_EQ(to_float(sum), 3.75F);
  });
  EXPECT_THAT(ends, Each("ok"));
}

TEST_F(Nccl, MessagesOfSeveralStreamsArriveInOrder) {
  const auto ends = run_nccl_ranks({.world_size = 2}, [](Communicator& communicator, Stream& stream) {
    Stream second(stream.device());
    const int peer = 1 - communicator.rank();
    DeviceBuffer<float> data(3, "data");
    for (int i = 0; i < 3; ++i) {
      Stream& used = i == 1 ? second : stream;
      const float value = static_cast<float>(10 * communicator.rank() + i);
      copy_to_device(std::span<const float>(&value, 1), data.elems().first(1), used);
      communicator.send(device_tensor(DeviceSpan<const float>(data.elems().first(1)), used), peer, kGrad);
      used.synchronize();
    }
    for (std::size_t i = 0; i < 3; ++i) {
      communicator.recv(device_tensor(data.elems().subspan(i, 1), stream), peer, kGrad);
    }
    std::vector<float> received(3);
    copy_to_host(DeviceSpan<const float>(data.elems()), std::span(received), stream);
    stream.synchronize();
    const auto first = static_cast<float>(10 * peer);
    EXPECT_THAT(received, ElementsAre(first, first + 1, first + 2));
  });
  EXPECT_THAT(ends, Each("ok"));
}

TEST_F(Nccl, ALastMessageIsHandedOverByTheEnd) {
  const auto ends = run_nccl_ranks({.world_size = 2}, [](Communicator& communicator, Stream& stream) {
    DeviceBuffer<float> data(1, "data");
    float value = 7;
    copy_to_device(std::span<const float>(&value, 1), data.elems(), stream);
    if (communicator.rank() == 0) {
      communicator.send(device_tensor(DeviceSpan<const float>(data.elems()), stream), 1, kGrad);
      stream.synchronize();
      return;
    }
    zero_on_device(data.elems(), stream);
    communicator.recv(device_tensor(data.elems(), stream), 0, kGrad);
    value = 0;
    copy_to_host(DeviceSpan<const float>(data.elems()), std::span(&value, 1), stream);
    stream.synchronize();
    EXPECT_EQ(value, 7);
  });
  EXPECT_THAT(ends, Each("ok"));
}

TEST_F(Nccl, TensorsOfTwoMemoriesOrOfAnotherDeviceAreRefused) {
  const auto ends = run_nccl_ranks({.world_size = 2}, [](Communicator& communicator, Stream& stream) {
    DeviceBuffer<float> data(1, "data");
    std::vector<float> host(1);
    const auto error_of = [](const std::function<void()>& call) -> std::string {
      try {
        call();
      } catch (const ConfigError& error) {
        return error.what();
      }
      return "no error";
    };
    EXPECT_THAT(error_of([&] {
                  communicator.all_reduce(device_tensor(data.elems(), stream), Tensor(std::span(host)), ReduceOp::kSum,
                                          kGrad);
                }),
                HasSubstr("input and output want one memory, and one stream (step 0, grad.wte, 4 bytes)"));
    EXPECT_EQ(nccl_device(communicator), communicator.rank());
    const int other_device = 1 - stream.device();
    Stream other(other_device);
    const std::string rank = std::to_string(communicator.rank());
    EXPECT_EQ(error_of([&] { communicator.all_reduce(device_tensor(data.elems(), other), ReduceOp::kSum, kGrad); }),
              "all_reduce: rank " + rank + ": the tensor is on device " + std::to_string(other_device) +
                  ", want this rank's device " + rank + " (step 0, grad.wte, 4 bytes)");
  });
  EXPECT_THAT(ends, Each("ok"));
}

}  // namespace
}  // namespace droptest::comm::nccl_test
