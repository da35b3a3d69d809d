// SPDX-License-Identifier: Apache-2.0
// Ranks over NCCL that fail, stall, leave, do not agree or cannot connect: on the test double, as in nccl_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/device_tensor.h"
#include "comm/nccl/nccl_backend.h"
#include "sim/error.h"
#include "tests/comm/fake_clock.h"
#include "tests/comm/nccl_fixture.h"
#include "tests/comm/nccl_ranks.h"
#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/fake_streams.h"

namespace droptest::comm::nccl_failure_test {
namespace {

using namespace std::chrono_literals;
using fake_nccl::Plan;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Message kGrad{sim::TrafficClass::kTpBackward, "grad.wte", -1};

using NcclFailure = NcclTest;
using NcclConnect = NcclTest;

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

// Makes so many calls that later ones are not compared any more.
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
  std::atomic<int> ended = 0;
  const auto ends =
      run_nccl_ranks({.world_size = 3, .timeout = 1500ms}, [&ended](Communicator& communicator, Stream& stream) {
        pass_comparisons(communicator, stream);
        try {
          train(communicator, stream, [&](std::uint64_t step) {
            if (step == 3 && communicator.rank() == 2) await(ended, 2);
          });
        } catch (const CommError&) {
          ++ended;
          ended.notify_all();
          throw;
        }
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
              Each(HasSubstr("local rank ")));  // detected before NCCL is asked
  // If each process sees only one device, as launchers arrange it, only NCCL can detect this.
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
}  // namespace droptest::comm::nccl_failure_test
