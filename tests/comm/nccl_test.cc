// SPDX-License-Identifier: Apache-2.0
// The NCCL backend over the test double of NCCL: its ranks are threads, whose devices and streams are the double's.
// What the ranks say to each other on the host goes over Gloo's real connections.
#include "comm/nccl/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/device_tensor.h"
#include "comm/nccl/nccl_backend.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "tests/comm/conformance.h"
#include "tests/comm/nccl_ranks.h"
#include "tests/comm/rank_processes.h"
#include "tests/comm/through_device.h"
#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/fake_streams.h"

namespace droptest::comm {
namespace {

using namespace std::chrono_literals;
using fake_nccl::Plan;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const Message kGrad{sim::TrafficClass::kTpBackward, "grad.wte", -1};

/// Each test leaves nothing behind, however its ranks end.
class Nccl : public ::testing::Test {
 protected:
  void SetUp() override { fake_nccl::reset(); }
  void TearDown() override {
    EXPECT_THAT(fake_nccl::misuses(), IsEmpty());
    EXPECT_EQ(fake_nccl::live_communicators(), 0U);
    EXPECT_EQ(fake_nccl::live_streams(), 0U);
    EXPECT_EQ(fake_nccl::live_events(), 0U);
    EXPECT_EQ(fake_nccl::live_allocations(), 0U);
  }
};
using NcclFailure = Nccl;
using NcclConnect = Nccl;

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
    // Both ranks come here, although neither stream has moved.
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

// Steps of all-reduces of 12 floats, each waited for, as training does; `change` may do something else in a step.
void train(Communicator& communicator, Stream& stream, const std::function<void(std::uint64_t)>& change = {}) {
  DeviceBuffer<float> data(12, "data");
  zero_on_device(data.elems(), stream);
  for (std::uint64_t step = 0; step < 20; ++step) {
    communicator.begin_step(step);
    if (change) change(step);
    communicator.all_reduce(device_tensor(data.elems(), stream), ReduceOp::kSum, kGrad);
    stream.synchronize();
  }
}

TEST_F(NcclFailure, AnErrorThatOneRankSeesEndsAllAndNamesIt) {
  fake_nccl::plan({.kind = Plan::Kind::kAsyncError,
                   .rank = 1,
                   .operation = 4,
                   .result = ncclRemoteError,
                   .words = "Connection closed by remote peer"});
  const auto ends = run_nccl_ranks({.world_size = 3}, [](Communicator& c, Stream& stream) { train(c, stream); });
  EXPECT_THAT(ends, Each(AllOf(StartsWith("CommError: all_reduce: rank "),
                               HasSubstr("NCCL failed on rank 1: ncclRemoteError: remote process exited or there was a "
                                         "network error: Connection closed by remote peer"))));
  EXPECT_THAT(ends[0], HasSubstr("[found by rank 1 in "));
  EXPECT_EQ(fake_nccl::aborted_communicators(), 3U);
}

TEST_F(NcclFailure, AnOperationThatStallsEndsAllAfterTheTimeout) {
  fake_nccl::plan({.kind = Plan::Kind::kStall, .rank = 2, .operation = 4});
  const auto ends =
      run_nccl_ranks({.world_size = 3, .timeout = 1500ms}, [](Communicator& c, Stream& stream) { train(c, stream); });
  EXPECT_THAT(ends,
              Each(AllOf(StartsWith("CommError: all_reduce: rank "),
                         HasSubstr("no progress in all_reduce for 1500 ms (step 3, grad.wte, 48 bytes); under way "
                                   "are: rank 0: all_reduce(sum of 12 float32, \"grad.wte\", tp_backward)"))));
  EXPECT_EQ(fake_nccl::aborted_communicators(), 3U);
}

TEST_F(NcclFailure, ACallThatNcclNeverTakesEndsAllAfterTheTimeout) {
  fake_nccl::plan({.kind = Plan::Kind::kNotTaken, .rank = 1, .operation = 4});
  const auto ends =
      run_nccl_ranks({.world_size = 2, .timeout = 1500ms}, [](Communicator& c, Stream& stream) { train(c, stream); });
  EXPECT_THAT(ends, Each(HasSubstr("no progress in all_reduce for 1500 ms (step 3, grad.wte, 48 bytes)")));
}

TEST_F(NcclFailure, ACallThatNcclRefusesEndsAll) {
  fake_nccl::plan({.kind = Plan::Kind::kRefuse,
                   .rank = 0,
                   .operation = 2,
                   .result = ncclSystemError,
                   .words = "out of file descriptors"});
  const auto ends = run_nccl_ranks({.world_size = 2}, [](Communicator& c, Stream& stream) { train(c, stream); });
  EXPECT_THAT(ends, Each(HasSubstr("NCCL failed on rank 0: ncclSystemError: unhandled system error: out of file "
                                   "descriptors (step 1, grad.wte, 48 bytes)")));
}

TEST_F(NcclFailure, ARankThatThrowsFreesThoseThatWaitForTheirStreams) {
  const auto ends = run_nccl_ranks({.world_size = 3}, [](Communicator& communicator, Stream& stream) {
    train(communicator, stream, [&](std::uint64_t step) {
      if (step == 3 && communicator.rank() == 1) throw std::domain_error("loss is not a number");
    });
  });
  EXPECT_EQ(ends[1], "loss is not a number");
  for (const std::size_t r : {0U, 2U}) {
    EXPECT_THAT(ends[r], AllOf(StartsWith("CommError: all_reduce: rank " + std::to_string(r) + " of 3: "),
                               HasSubstr("rank 1 failed: loss is not a number")));
  }
}

// Puts so many calls behind the group that the next ones are not compared any more.
void pass_comparisons(Communicator& communicator, Stream& stream) {
  DeviceBuffer<float> data(1, "data");
  zero_on_device(data.elems(), stream);
  for (int i = 0; i < 260; ++i) {
    communicator.all_reduce(device_tensor(data.elems(), stream), ReduceOp::kSum, {.name = "before"});
  }
  stream.synchronize();
}

TEST_F(NcclFailure, ARankThatLeavesIsNamed) {
  const auto ends =
      run_nccl_ranks({.world_size = 3, .timeout = 1500ms}, [](Communicator& communicator, Stream& stream) {
        pass_comparisons(communicator, stream);
        if (communicator.rank() != 1) train(communicator, stream);
      });
  EXPECT_EQ(ends[1], "ok");
  for (const std::size_t r : {0U, 2U}) {
    EXPECT_THAT(ends[r],
                HasSubstr("no progress in all_reduce for 1500 ms (step 0, grad.wte, 48 bytes); rank 1 left the "
                          "group without taking part"));
  }
}

TEST_F(NcclFailure, ARankThatDoesNotComeIsNamed) {
  const auto ends =
      run_nccl_ranks({.world_size = 3, .timeout = 1500ms}, [](Communicator& communicator, Stream& stream) {
        pass_comparisons(communicator, stream);
        train(communicator, stream, [&](std::uint64_t step) {
          if (step == 3 && communicator.rank() == 2) std::this_thread::sleep_for(6s);
        });
      });
  EXPECT_THAT(ends, Each(HasSubstr("no progress in all_reduce for 1500 ms (step 3, grad.wte, 48 bytes); nothing is "
                                   "under way on rank 2")));
}

TEST_F(NcclFailure, CallsThatDifferAreComparedAtFirst) {
  const auto ends = run_nccl_ranks({.world_size = 3}, [](Communicator& communicator, Stream& stream) {
    DeviceBuffer<float> data(12, "data");
    const std::size_t count = communicator.rank() == 1 ? 11 : 12;
    communicator.all_reduce(device_tensor(data.elems().first(count), stream), ReduceOp::kSum, kGrad);
  });
  EXPECT_THAT(
      ends, Each(AllOf(HasSubstr("the ranks call different things"), HasSubstr("rank 1: all_reduce(sum of 11 float32"),
                       HasSubstr("ranks 0, 2: all_reduce(sum of 12 float32"))));
}

TEST_F(NcclFailure, CallsThatDifferLaterRunIntoTheTimeoutAndAreAllTold) {
  const auto ends =
      run_nccl_ranks({.world_size = 2, .timeout = 1500ms}, [](Communicator& communicator, Stream& stream) {
        pass_comparisons(communicator, stream);
        DeviceBuffer<float> data(12, "data");
        const std::size_t count = communicator.rank() == 1 ? 11 : 12;
        communicator.all_reduce(device_tensor(data.elems().first(count), stream), ReduceOp::kSum, kGrad);
        stream.synchronize();
        communicator.barrier({.name = "after"});
      });
  EXPECT_THAT(ends, Each(AllOf(HasSubstr("rank 0: all_reduce(sum of 12 float32"),
                               HasSubstr("rank 1: all_reduce(sum of 11 float32"))));
}

TEST_F(NcclFailure, CountsAndMessagesThatDifferAreSeen) {
  const auto counts = run_nccl_ranks({.world_size = 2}, [](Communicator& communicator, Stream& stream) {
    DeviceBuffer<float> data(6, "data");
    DeviceBuffer<float> other(6, "data");
    const std::vector<std::uint64_t> send = {2, 2};
    const std::vector<std::uint64_t> receive = {2, communicator.rank() == 0 ? 3U : 2U};
    communicator.all_to_all(device_tensor(DeviceSpan<const float>(data.elems().first(4)), stream), send,
                            device_tensor(other.elems().first(2 + receive[1]), stream), receive, kGrad);
    communicator.barrier({.name = "after"});
  });
  EXPECT_THAT(counts, Each(HasSubstr("rank 1 sends 2 elements to rank 0, which expects 3")));
  fake_nccl::reset();
  const auto messages = run_nccl_ranks({.world_size = 2}, [](Communicator& communicator, Stream& stream) {
    DeviceBuffer<float> data(6, "data");
    if (communicator.rank() == 0) {
      communicator.send(device_tensor(DeviceSpan<const float>(data.elems()), stream), 1, kGrad);
      communicator.barrier({.name = "after"});
    } else {
      communicator.recv(device_tensor(data.elems().first(5), stream), 0, kGrad);
    }
  });
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr("rank 0 calls send(6 float32"), HasSubstr("rank 1 calls recv(5 float32"))));
}

TEST_F(NcclFailure, APartsFailureIsTheWholesFailure) {
  const auto ends = run_nccl_ranks({.world_size = 4}, [](Communicator& communicator, Stream& stream) {
    const auto part = communicator.split(communicator.rank() % 2, 0);
    train(*part, stream, [&](std::uint64_t step) {
      if (step == 5 && communicator.rank() == 3) throw std::domain_error("loss is not a number");
    });
    communicator.barrier({.name = "after the parts"});
  });
  for (const std::size_t r : {0U, 1U, 2U}) {
    EXPECT_THAT(ends[r], AllOf(StartsWith("CommError: "), HasSubstr("rank 3 failed: loss is not a number")));
  }
}

TEST_F(NcclConnect, TwoRanksOnOneDeviceAreRefused) {
  EXPECT_THAT(run_nccl_ranks({.world_size = 2, .devices = 1}, {}),
              Each(HasSubstr("local rank ")));  // before NCCL is asked
  // Where each process sees one device, as launchers arrange it, only NCCL can tell.
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  const auto ends = run_nccl_ranks({.world_size = 2, .devices = 1}, {});
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(ends, Each(AllOf(StartsWith("CommError: nccl: rank "), HasSubstr("two ranks are on one GPU"),
                               HasSubstr("use backend \"local\", whose ranks share a GPU"))));
}

TEST_F(NcclConnect, RanksThatPassForOtherHostsShareADevice) {
  fake_nccl::allow_shared_devices();
  ::setenv("NCCL_HOSTID", "the test's", 1);
  const auto ends =
      run_nccl_ranks({.world_size = 2, .devices = 1}, [](Communicator& c, Stream& stream) { train(c, stream); });
  ::unsetenv("NCCL_HOSTID");
  EXPECT_THAT(ends, Each("ok"));
}

TEST_F(NcclConnect, ConnectionsThatAreNeverMadeEndAtTheTimeout) {
  fake_nccl::never_connect();
  EXPECT_THAT(run_nccl_ranks({.world_size = 3, .timeout = 1500ms}, {}),
              Each(AllOf(StartsWith("CommError: nccl: rank "), HasSubstr("no progress in connect for 1500 ms"))));
}

TEST_F(NcclConnect, NoDeviceAndAnOldLibraryAreFoundBeforeTheOthersAreMet) {
  fake_nccl::set_devices(0);
  ProcessGroupOptions options;
  options.rank = 1;
  options.world_size = 2;
  EXPECT_THROW(
      {
        try {
          connect_nccl(options);
        } catch (const DeviceError& error) {
          EXPECT_THAT(error.what(), HasSubstr("nccl: rank 1: this process sees no CUDA device"));
          throw;
        }
      },
      DeviceError);
  fake_nccl::set_devices(2);
  fake_nccl::set_version(21602);
  EXPECT_THROW(
      {
        try {
          connect_nccl(options);
        } catch (const DeviceError& error) {
          EXPECT_EQ(std::string(error.what()), "nccl: rank 1: the library is NCCL 2.16.2, want 2.18 or newer");
          throw;
        }
      },
      DeviceError);
}

}  // namespace
}  // namespace droptest::comm
